"""Transport: what a process group needs of an engine such as MPI, and that of one process, which needs none.

An engine moves bytes; sums and rounding are reduction.py's. A transport implements `exchange_others`, `split`,
for messages between two ranks `send` and `receive`, and for those of the library itself `tell` and `heard`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ..backends import Array
from ..base.errors import AmpkitError, StateError
from ..base.html import cell_of

LIBRARY = str(Path(__file__).parents[1])
LARGEST_TAG = 3275  # of messages between two ranks: MPI's tags reach at least 32,767, and say the dtype too


class DistError(AmpkitError, RuntimeError):
    """Ranks that do not come to a collective in time, or that call different ones; PyTorch's name."""


class Call(NamedTuple):
    """A collective as a rank calls it. Ranks whose `says` differ have made different calls.

    says: name, operation, dtype, shape: what must be equal on all ranks. site: the line of the script that called it.
    """

    says: str
    site: str

    @property
    def place(self) -> str:
        """What was called and where, for errors."""
        return f"{self.says}, at {self.site}" if self.site else self.says

    @property
    def signature(self) -> int:
        """14 bits that tell calls apart: as a message's tag they fit into any MPI, whose tags reach at least 32,767."""
        return crc32(self.says.encode()) & 0x3FFF


def call_site() -> str:
    """The line outside of ampkit that called into it, as `train.py:42`, in a notebook `cell In[2], line 42`.

    "" where Python's own start is all there is.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((LIBRARY, "<frozen ")):
        frame = frame.f_back
    if frame is None:
        return ""
    cell = cell_of(frame.f_code.co_filename)
    return f"{cell}, line {frame.f_lineno}" if cell else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class Transport:
    """Moves flat contiguous arrays between the ranks of a group. This one is that of a single rank.

    rank: this process's number in the group. size: how many there are. timeout: seconds that a rank may be late.
    on_device: whether it takes arrays of a GPU; where it does not, they are copied to the host's memory before.
    """

    on_device = True

    def __init__(self, rank: int = 0, size: int = 1, timeout: float = 1800.0):
        self.rank, self.size, self.timeout = rank, size, timeout

    def enqueue(self, action: Callable[[], Any], array: Array) -> Any:
        """Begin `action` on the device that `array` is on: a future of what it returns, see `nccl.Queued`."""
        done: Future[Any] = Future()
        done.set_result(action())
        return done

    def exchange(self, call: Call, sent: Sequence[Array], received: Sequence[Array]) -> None:
        """Send sent[r] to each rank r and write what r sends to this rank into received[r].

        Arrays of no elements send nothing; both ranks know of it. Raises DistError for ranks that have made another
        call, or none within `timeout` seconds.
        """
        if received[self.rank] is not sent[self.rank]:
            received[self.rank][...] = sent[self.rank]
        if self.size > 1:
            self.exchange_others(call, sent, received)

    def exchange_others(self, call: Call, sent: Sequence[Array], received: Sequence[Array]) -> None:
        """`exchange`, without what this rank sends to itself."""
        raise NotImplementedError

    def broadcast(self, call: Call, array: Array, source: int) -> None:
        """Write the `array` of rank `source` into that of every rank: along a binomial tree, in log2(size) rounds."""
        none, place, reached = array[:0], (self.rank - source) % self.size, 1
        while reached < self.size:  # places below `reached` have it
            sent, received = [none] * self.size, [none] * self.size
            if place < reached and place + reached < self.size:
                sent[(self.rank + reached) % self.size] = array
            elif reached <= place < 2 * reached:
                received[(self.rank - reached) % self.size] = array
            self.exchange(call, sent, received)
            reached *= 2

    def barrier(self, call: Call) -> None:
        """Return when every rank has called it."""
        sent, received = np.zeros(1, np.uint8), np.zeros(self.size, np.uint8)
        self.exchange(call, [sent] * self.size, [received[rank : rank + 1] for rank in range(self.size)])

    def send(self, call: Call, array: Array, to: int, tag: int) -> Callable[[], None]:
        """Begin to send `array` to the rank `to`, which receives it with the same tag. -> what waits for the end."""
        raise StateError("send", "another rank to send to", "a group of one")

    def receive(self, call: Call, array: Array, source: int | None, tag: int) -> Callable[[], int]:
        """Begin to receive into `array` what rank `source`, or any for None, sends with `tag`.

        -> what waits for the end and returns the rank that sent it.
        """
        raise StateError("recv", "another rank to receive from", "a group of one")

    def tell(self, rank: int, kind: int, text: str) -> None:
        """Send a text to another rank, apart from all else; `kind` is a small number."""
        raise StateError("tell", "another rank to tell", "a group of one")

    def heard(self, kind: int, source: int | None = None) -> tuple[int, str] | None:
        """The next text of a kind that a rank, or any for None, has told: (rank, text); None where none has come."""
        return None

    def split(self, groups: Sequence[Sequence[int]]) -> Transport | None:
        """The transport of the one of `groups`, lists of ranks that have no rank in common, which has this rank.

        All ranks call it; the answer is None on those that are in none.
        """
        return Transport(timeout=self.timeout) if any(self.rank in ranks for ranks in groups) else None

    def copy(self) -> Transport:
        """The same ranks, with messages of their own; all of them call it."""
        return Transport(timeout=self.timeout)

    def explained(self, error: Exception) -> Exception:
        """The error to raise for one of the engine's: itself, where there is nothing to add."""
        return error

    def agree(self) -> None:
        """Return on all ranks, or raise RankLostError on all; where MPI cannot go on without a rank, do nothing."""

    def close(self) -> None:
        """Disconnect, after all that was called."""


def need_present(call: Call, missing: Sequence[int], timeout: float) -> None:
    """Raise the DistError for ranks that have not come to `call` in time."""
    if missing:
        raise absent(call, missing, timeout)


def absent(call: Call, missing: Sequence[int], timeout: float) -> DistError:
    """The error for ranks that have not come to `call` in time."""
    who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
    return DistError(
        call.place,
        f"every rank within {timeout:g} s",
        f"nothing from {who}",
        "see what it printed; all ranks must make the same calls in the same order",
    )


def mismatch(call: Call, rank: int, theirs: str) -> DistError:
    """The error for a rank that has made another call than this one."""
    return DistError(call.place, "the same call on every rank", f"{theirs} on rank {rank}")
