"""The memory pool that the captured steps of a device share for their temporaries.

CuPy returns a block to its pool when the last array on it is deleted, while a graph goes on using the address. Between
two launches nobody needs those values, so all captured steps, and eager work run in the pool, share the same blocks.
The invariant: an array that outlives the work that allocated it must not overlap the temporaries of a captured step.
Where one does, that step is dropped and captures itself again.

On a shortage CuPy's pool returns free segments to the driver, which captured steps still use. So segments come from
`_segment`, which frees memory in a safe order: free blocks of the default pool first, captured steps with their
temporaries last, and nothing during capture.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet, ref

from .allocator import graph_pools, is_shortage, shortage

SMALL = 1 << 16  # bytes; what is smaller is not shared: a step leaves counters and flags behind, but no activations


class Allocation:
    """A block of the pool in use, addresses [start, stop). It returns to the pool when this object is deleted."""

    __slots__ = ("__weakref__", "block", "pool", "start", "stop")

    def __init__(self, pool: Any, size: int):
        self.pool, self.block = pool, pool.malloc(size)  # a pool that goes takes its blocks with it
        self.start = int(self.block.ptr)
        self.stop = self.start + int(self.block.mem.size)


class Work:
    """The allocations of a piece of work: their address ranges, and which are still alive."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.addresses: dict[int, ref[Any]] = {}  # where they start, each with the newest
        self._made: list[ref[Allocation]] = []

    def add(self, allocation: Allocation) -> None:
        self.ranges.append((allocation.start, allocation.stop))
        self.addresses[allocation.start] = ref(allocation)
        self._made.append(ref(allocation))

    def at(self, address: int) -> ref[Any] | None:
        """The newest allocation that starts there, which may be gone."""
        return self.addresses.get(address)

    def alive(self) -> list[Allocation]:
        return [found for found in (each() for each in self._made) if found is not None]

    def join(self, other: Work) -> None:
        """Add the allocations of `other`, work nested in this one."""
        self.ranges += other.ranges
        self.addresses |= other.addresses
        self._made += other._made


class Footprint:
    """The addresses of a captured step's temporaries, as disjoint ranges."""

    def __init__(self, ranges: list[tuple[int, int]]):
        self.starts: list[int] = []
        self.stops: list[int] = []
        for start, stop in sorted(ranges):
            if self.stops and start <= self.stops[-1]:
                self.stops[-1] = max(self.stops[-1], stop)
            else:
                self.starts.append(start)
                self.stops.append(stop)

    @property
    def nbytes(self) -> int:
        """How many addresses they are."""
        return sum(self.stops) - sum(self.starts)

    def overlaps(self, start: int, stop: int) -> bool:
        """Whether any address in [start, stop) is one of them."""
        place = bisect_right(self.starts, start) - 1
        if place >= 0 and start < self.stops[place]:
            return True
        return place + 1 < len(self.starts) and self.starts[place + 1] < stop


class GraphPool:
    """The pool of one device's captured steps, and the stream on which they and their warm-up run.

    graphs: the existing ones; `graph.drop()` discards a capture. outside: the allocator for everything else.
    beside: addresses of further streams that steps work on.
    """

    def __init__(self, xp: Any, index: int, outside: Callable[[int], Any], beside: Set[int] = frozenset()):
        self.xp, self.index, self._outside, self._beside = xp, index, outside, beside
        graph_pools.add(self)
        self.pool = xp.cuda.MemoryPool(self._segment)
        with xp.cuda.Device(index):
            self.stream = xp.cuda.Stream(non_blocking=True)
        self.graphs: WeakSet[Any] = WeakSet()
        self.recording = False
        self._small: Any = None  # where small allocations of the recording go
        self.live: WeakSet[Allocation] = WeakSet()
        self.allocates = False  # the pool is being asked for a block
        self._work: Work | None = None  # what is under way

    def used_bytes(self) -> int:
        """Bytes in use by arrays and by the temporaries of captured steps."""
        if any(graph.footprint is not None for graph in self.graphs):
            return self.total_bytes()
        return int(self.pool.used_bytes())

    def total_bytes(self) -> int:
        """Bytes reserved, free blocks included."""
        return sum(int(pool.total_bytes()) for pool in (self.pool, *(graph.small for graph in self.graphs)))

    def free(self) -> None:
        """Return free segments to the driver, unless captured steps have temporaries there."""
        if not any(graph.footprint is not None for graph in self.graphs):
            self.pool.free_all_blocks()

    def release(self) -> None:
        """Drop every captured step and return free segments to the driver."""
        for graph in list(self.graphs):
            graph.drop()
        gc.collect()
        self.pool.free_all_blocks()

    # allocating

    @contextmanager
    def use(self, recorded: Any = None) -> Iterator[Work]:
        """A context that runs work on the pool's stream and memory, ordered with the outer stream by events.

        recorded: the graph being captured, or None. On exit, graphs whose temporaries overlap an array that is still
        alive are dropped.
        """
        with self.xp.cuda.Device(self.index):
            outside = self.xp.cuda.get_current_stream()
            self.stream.wait_event(outside.record())
            try:
                with self.stream, self._allocating(recorded) as work:
                    yield work
            finally:  # what an error cut short goes on, and the next work must come after it
                outside.wait_event(self.stream.record())

    def outside(self) -> Any:
        """A context inside `use` in which CuPy allocates from the outer allocator."""
        return self.xp.cuda.using_allocator(self._outside)

    @contextmanager
    def _allocating(self, recorded: Any) -> Iterator[Work]:
        outer, work = self._work, Work()
        self._work = work
        if recorded is not None:
            recorded.small = self._small = self.xp.cuda.MemoryPool(self._segment)
        try:
            with self.xp.cuda.using_allocator(self._malloc):
                yield work
        finally:
            self._work = outer
            if outer is not None:
                outer.join(work)
            else:
                self._drop_overlapped(work, recorded)

    def _malloc(self, size: int) -> Any:
        stream = self.xp.cuda.get_current_stream().ptr
        if stream != self.stream.ptr and stream not in self._beside:  # a batch on its way, a constant of a recording
            return self._outside(size)
        if size < SMALL and not self.recording:
            return self._outside(size)
        self.allocates = True
        try:
            allocation = Allocation(self._small if size < SMALL else self.pool, size)
        except Exception as error:
            raise shortage(self.xp, error) from None
        finally:
            self.allocates = False
        self.live.add(allocation)
        if self._work is not None:
            self._work.add(allocation)
        cuda = self.xp.cuda
        return cuda.MemoryPointer(cuda.UnownedMemory(allocation.start, size, allocation, self.index), 0)

    def _drop_overlapped(self, work: Work, recorded: Any) -> None:
        others = [graph for graph in self.graphs if graph is not recorded and graph.footprint is not None]
        if not others or not self._overlapped(work, others):
            return
        gc.collect()  # arrays in a reference cycle are alive, and nobody uses them
        for graph in self._overlapped(work, others):
            graph.drop()

    def _overlapped(self, work: Work, graphs: list[Any]) -> list[Any]:
        alive = work.alive()
        return [graph for graph in graphs if any(graph.footprint.overlaps(a.start, a.stop) for a in alive)]

    # memory of the driver

    def _segment(self, size: int) -> Any:
        relief: list[Callable[[], None] | None] = [None]
        if not self.recording:
            relief += [self.xp.get_default_memory_pool().free_all_blocks, self.release]
        for release in relief:
            if release is not None:
                release()
            try:
                return self.xp.cuda.MemoryPointer(self.xp.cuda.Memory(size), 0)
            except Exception as error:
                if not is_shortage(self.xp, error):
                    raise
        # Not the driver's error, for which CuPy would give free segments back, temporaries of a recording among them.
        raise self.xp.cuda.memory.OutOfMemoryError(size, int(self.pool.total_bytes()), 0)
