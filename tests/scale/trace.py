"""The exchanges of one rank among many, traced in one process: a transport that sends nothing and counts bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ampkit.backends import Array
from ampkit.distributed import world
from ampkit.distributed.transport import Call, Transport


class Exchange(NamedTuple):
    """What a rank sends to each rank and receives from it in an exchange, in bytes. says: of which call."""

    says: str
    sent: tuple[int, ...]
    received: tuple[int, ...]


class DryTransport(Transport):
    """The transport of a rank among others that there are not: they send what it sends. trace: the exchanges so far."""

    on_device = False

    def __init__(self, rank: int, size: int, trace: list[Exchange] | None = None):
        super().__init__(rank, size)
        self.trace: list[Exchange] = [] if trace is None else trace

    def exchange_others(self, call: Call, sent: Sequence[Array], received: Sequence[Array]) -> None:
        self.trace.append(exchanged(self.rank, call, sent, received))
        own = sent[self.rank]
        for rank, array in enumerate(received):
            if rank != self.rank:
                array[...] = own if own.nbytes == array.nbytes else 0

    def split(self, groups: Sequence[Sequence[int]]) -> Transport | None:
        mine = next((list(ranks) for ranks in groups if self.rank in ranks), None)
        return None if mine is None else DryTransport(mine.index(self.rank), len(mine), self.trace)

    def copy(self) -> DryTransport:
        return DryTransport(self.rank, self.size, self.trace)


def exchanged(rank: int, call: Call, sent: Sequence[Array], received: Sequence[Array]) -> Exchange:
    """The bytes of an exchange with the others."""
    counts = [[0 if other == rank else array.nbytes for other, array in enumerate(each)] for each in (sent, received)]
    return Exchange(call.says, *map(tuple, counts))


@contextmanager
def one_of(size: int, rank: int = 0) -> Iterator[list[Exchange]]:
    """A context in which this process is a rank among `size` for ampkit.distributed. -> its exchanges."""
    transport: Any = DryTransport(rank, size)
    engine, world._engine = world._engine, "sockets"
    world.group.WORLD = world._group_of(range(size), transport)
    world._groups.append(world.group.WORLD)
    try:
        yield transport.trace
    finally:
        world.destroy_process_group()
        world._engine = engine
