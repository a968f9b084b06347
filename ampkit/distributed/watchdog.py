"""Watchdog: a thread that notices collectives of a GPU that do not end, and asks all ranks who is missing.

NCCL's collectives run on the device without the host, and wait there for ever. The watchdog looks whether the oldest
has ended in time. If not, it asks the watchdogs of the other ranks which calls they have made: a rank without an
answer is dead, one that has made fewer calls is late, and one with another call in this place has made a wrong one. A
rank that ends with an error tells the others' watchdogs.
"""

from __future__ import annotations

import atexit
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import Any

from ..backends.threads import on_this_device
from .transport import Call, DistError, Transport, mismatch, need_present

ASK, ANSWER, ENDS = 1, 2, 3  # kinds of what ranks tell each other
LONGEST_PERIOD = 1.0  # seconds between two looks
KEPT = 1000  # calls that a rank remembers, to tell others


class Begun:
    """A collective on the device. end: the event behind it, None while the host has not handed it over yet."""

    def __init__(self, call: Call, number: int, deadline: float):
        self.call, self.number, self.deadline = call, number, deadline
        self.end: Any = None
        self.kept: Sequence[Any] = ()  # arrays that it uses


class Watchdog:
    """Watches the collectives of one group's NCCL communicator.

    control: the group's ranks by a transport of the host, which nobody else uses. check: raises for an error that NCCL
    has found. fail: called with the error, ends what the device waits for. error: what has gone wrong, once it has.
    """

    def __init__(self, control: Transport, check: Callable[[], None], fail: Callable[[Exception], None]):
        self.control, self._check, self._fail = control, check, fail
        self.error: Exception | None = None
        self._count = 0
        self._under_way: deque[Begun] = deque()
        self._calls: deque[Begun] = deque(maxlen=KEPT)
        self._period = min(LONGEST_PERIOD, control.timeout / 4)
        self._stop = Event()
        self._thread = Thread(target=on_this_device(self._run), name="ampkit-nccl-watchdog", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # before mpi4py ends MPI

    def begin(self, call: Call) -> Begun:
        """Watch `call` from now on. Raises what went wrong before."""
        if self.error is not None:
            raise self.error
        self._count += 1
        begun = Begun(call, self._count, time.monotonic() + self.control.timeout)
        self._under_way.append(begun)
        self._calls.append(begun)
        return begun

    def withdraw(self, begun: Begun) -> None:
        """Forget what was not handed over, because of an error of its own."""
        self._under_way.remove(begun)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()
        atexit.unregister(self.close)

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            try:
                self._answer()
                if self.error is None:
                    self._look()
            except Exception as error:  # raised by the next call of the group
                self.error = self.error or self.control.explained(error)
                self._fail(self.error)

    def tell_all(self, text: str) -> None:
        """Tell the other ranks of an error that ends this one."""
        for rank in self._others():
            self.control.tell(rank, ENDS, text)

    def _others(self) -> list[int]:
        return [rank for rank in range(self.control.size) if rank != self.control.rank]

    def _hear(self) -> None:
        if self._calls and (told := self.control.heard(ENDS)):
            raise mismatch((self._under_way or self._calls)[0].call, *told)

    def _look(self) -> None:
        self._hear()
        while self._under_way and self._under_way[0].end is not None and self._under_way[0].end.done:
            self._under_way.popleft()
        if not self._under_way:
            return
        oldest = self._under_way[0]
        try:
            self._check()
        except Exception as error:  # NcclError, or KeyError of a number that CuPy does not know
            raise DistError(oldest.call.place, "NCCL to go on", str(error)) from None
        if time.monotonic() > oldest.deadline:
            self._diagnose(oldest)

    def _diagnose(self, late: Begun) -> None:
        """Raise the DistError that says why `late` has not ended."""
        answers = self._asked(late.number)
        missing = [rank for rank in self._others() if answers.get(rank, (0, ""))[0] < late.number]
        need_present(late.call, missing, self.control.timeout)
        for rank in self._others():
            if answers[rank][1] != late.call.says:
                raise mismatch(late.call, rank, answers[rank][1])
        needs = f"NCCL to end within {self.control.timeout:g} s"
        cure = "set NCCL_DEBUG=INFO, and see what NCCL prints of the network"
        raise DistError(late.call.place, needs, "all ranks in it, and no end", cure)

    def _asked(self, number: int) -> dict[int, tuple[int, str]]:
        """By rank: how many calls it has made, and which was its call `number`; of those that answer."""
        others = self._others()
        for rank in others:
            self.control.tell(rank, ASK, str(number))
        found: dict[int, tuple[int, str]] = {}
        deadline = time.monotonic() + 2 * LONGEST_PERIOD + self._period
        while len(found) < len(others) and time.monotonic() < deadline:
            self._answer()
            while told := self.control.heard(ANSWER):
                count, _, says = told[1].partition(" ")
                found[told[0]] = int(count), says
            time.sleep(self._period / 20)
        return found

    def _answer(self) -> None:
        while told := self.control.heard(ASK):
            number = int(told[1])
            says = next((begun.call.says for begun in list(self._calls) if begun.number == number), "another call")
            self.control.tell(told[0], ANSWER, f"{self._count} {says}")
