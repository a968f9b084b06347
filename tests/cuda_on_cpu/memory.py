"""The memory of the emulated devices: addresses, CuPy's memory pool, and shortages on demand.

A pool behaves as CuPy's (cupy/cuda/memory.pyx, version 14): blocks of 512 bytes, one free list per stream, the smallest
block that is large enough, split and merged again, and free segments given back when the driver has no memory. So
freed memory is handed out again at the same address, as on a card, and what still uses it reads another's values.
`fail_at` makes the driver refuse one allocation; every live block has a serial number, by which `Range.stale_reason`
tells whether an address still belongs to whom it belonged when a launch was captured.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

DEVICE_BYTES = 80 << 30  # bytes of each card
ALIGNMENT = 512  # bytes; sizes of blocks are multiples of it
NO_MEMORY = 2  # cudaErrorMemoryAllocation
hooks: list[Any] = []  # told of all that pools allocate and free
segments: list[int] = []  # where the driver's allocations begin, in order
_segment_at: dict[int, weakref.ref[Memory]] = {}
_released: deque[int] = deque()  # addresses of those that are gone, still among the others
_allocated_bytes: defaultdict[int, int] = defaultdict(int)  # bytes by device
_serials = itertools.count(1)
_mallocs = 0  # how often the driver was asked
_refused: set[int] = set()  # the numbers of the allocations that it refuses


class CUDARuntimeError(RuntimeError):
    """In CuPy's words."""

    def __init__(self, status: int, name: str, text: str = ""):
        super().__init__(f"{name}: {text}" if text else name)
        self.status = status


class OutOfMemoryError(MemoryError):
    """In CuPy's words."""

    def __init__(self, size: int, total: int, limit: int = 0):
        line = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(line + (f", limit set to: {limit:,} bytes)." if limit else ")."))


class _Current(threading.local):
    device = 0
    allocator: Any = None


current = _Current()


# the driver


class BaseMemory:
    """A stretch of a device's memory; `serial` grows from one allocation to the next."""

    ptr: int
    size: int
    device_id: int

    @property
    def serial(self) -> int:
        return 0


class Memory(BaseMemory):
    """What cudaMalloc gives, by an array of the host's. Raises CUDARuntimeError where the card is full."""

    segment = property(lambda self: self)

    def __init__(self, size: int):
        global _mallocs
        self.size, self.device_id, self.ptr = size, current.device, 0
        if not size:
            return
        _mallocs += 1
        if _mallocs in _refused or allocated(current.device) + size > DEVICE_BYTES:
            raise CUDARuntimeError(NO_MEMORY, "cudaErrorMemoryAllocation", "out of memory")
        raw = np.empty(size + ALIGNMENT, np.uint8)
        start = -raw.__array_interface__["data"][0] % ALIGNMENT
        self.bytes = raw[start : start + size]
        self.ptr = raw.__array_interface__["data"][0] + start
        self.blocks: dict[int, tuple[int, int]] = {}  # of live blocks, by address: size and serial
        _forget_released()
        bisect.insort(segments, self.ptr)
        _segment_at[self.ptr] = weakref.ref(self)
        _allocated_bytes[self.device_id] += size
        weakref.finalize(self, _release, self.ptr, self.device_id, size).atexit = False


def _release(ptr: int, device: int, size: int) -> None:
    # Perhaps in the middle of a call on the list of segments, when the garbage collector found it.
    _allocated_bytes[device] -= size
    _released.append(ptr)


def _forget_released() -> None:
    while _released:
        ptr = _released.popleft()
        segments.remove(ptr)
        del _segment_at[ptr]


def segment_of(address: int) -> Memory | None:
    """The driver's allocation that holds an address, or None."""
    _forget_released()
    place = bisect.bisect_right(segments, address) - 1
    found = _segment_at[segments[place]]() if place >= 0 else None
    return found if found is not None and address < found.ptr + found.size else None


def allocated(device: int) -> int:
    """Bytes that the driver has given out on a device."""
    return _allocated_bytes[device]


def mallocs() -> int:
    """How often the driver has been asked for memory."""
    return _mallocs


@contextmanager
def fail_at(*numbers: int) -> Iterator[None]:
    """Within the block the driver refuses the allocations of these numbers, counted from 1 at its start."""
    _refused.update(_mallocs + number for number in numbers)
    try:
        yield
    finally:
        _refused.clear()


class Range(NamedTuple):
    """Bytes that a captured launch uses, and the block that held them then."""

    start: int
    stop: int
    serial: int

    def stale_reason(self, first: int, last: int) -> str:
        """Why a launch cannot use the bytes, or "". Serials from `first` to `last` were allocated by its capture."""
        segment = segment_of(self.start)
        if segment is None:
            return "memory that was given back to the driver"
        live = {serial for at, (size, serial) in segment.blocks.items() if at < self.stop and self.start < at + size}
        if first <= self.serial <= last:  # freed in the capture or not, nobody else may hold it
            others = any(not first <= serial <= last for serial in live)
            return "memory that somebody else holds by now" if others else ""
        return "" if self.serial in live else "memory that nobody holds any more"


# CuPy's pool


class Chunk:
    """A part of a segment, between its neighbours."""

    __slots__ = ("next", "offset", "prev", "segment", "size", "stream")

    def __init__(self, segment: Memory, offset: int, size: int, stream: int):
        self.segment, self.offset, self.size, self.stream = segment, offset, size, stream
        self.prev: Chunk | None = None
        self.next: Chunk | None = None

    @property
    def ptr(self) -> int:
        return self.segment.ptr + self.offset

    def split(self, size: int) -> Chunk | None:
        """Keep the first `size` bytes; what remains."""
        if size == self.size:
            return None
        rest = Chunk(self.segment, self.offset + size, self.size - size, self.stream)
        rest.next, rest.prev, self.size = self.next, self, size
        if rest.next is not None:
            rest.next.prev = rest
        self.next = rest
        return rest

    def merge(self, behind: Chunk) -> None:
        """Take the next chunk in."""
        self.size += behind.size
        self.next = behind.next
        if self.next is not None:
            self.next.prev = self


class PooledMemory(BaseMemory):
    """A block of a pool, which gets it back when nobody refers to it."""

    def __init__(self, chunk: Chunk, pool: _DevicePool):
        self.ptr, self.size, self.device_id = chunk.ptr, chunk.size, chunk.segment.device_id
        self._segment, self.pool, self._serial = weakref.ref(chunk.segment), pool.weakref, next(_serials)
        chunk.segment.blocks[self.ptr] = (self.size, self._serial)

    @property
    def segment(self) -> Memory | None:
        """None once the pool is gone, which takes its blocks with it, as CuPy's do."""
        return self._segment()

    @property
    def serial(self) -> int:
        return self._serial

    def __del__(self, is_finalizing=sys.is_finalizing):  # bound here: at the end modules lose their names
        segment = self.segment
        if segment is None or is_finalizing():
            return
        segment.blocks.pop(self.ptr, None)
        pool = self.pool()
        if pool is not None:
            pool.freed.append(self.ptr)  # in the middle of another call perhaps, when the garbage collector found it
            pool.free_pending()
            for hook in hooks:
                hook.free_postprocess(
                    device_id=self.device_id, mem_size=self.size, mem_ptr=self.ptr, pmem_id=id(self)
                )  # fmt: skip


class UnownedMemory(BaseMemory):
    """Memory of somebody else's, `owner`, who is kept."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1):
        self.ptr, self.size, self._owner = ptr, size, owner
        self.device_id = current.device if device_id < 0 else device_id

    @property
    def segment(self) -> Memory | None:
        return segment_of(self.ptr)

    @property
    def serial(self) -> int:
        return serial_of(self.ptr)


def serial_of(address: int) -> int:
    """The serial number of the live block that holds an address; 0 if there is none."""
    segment = segment_of(address)
    blocks = list(segment.blocks.items()) if segment is not None else ()  # another thread may allocate meanwhile
    return next((serial for at, (size, serial) in blocks if at <= address < at + size), 0)


class MemoryPointer:
    """An address within memory that it keeps."""

    __slots__ = ("device_id", "mem", "ptr")

    def __init__(self, mem: BaseMemory, offset: int):
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id

    def __int__(self):
        return self.ptr


class _DevicePool:
    """The pool of one device."""

    def __init__(self, allocator: Callable[[int], MemoryPointer]):
        self.allocator = allocator
        self.in_use: dict[int, Chunk] = {}
        self.free_chunks: dict[int, list[Chunk]] = {}  # by stream, the smallest first
        self.freed: deque[int] = deque()  # addresses still to be put there
        self.lock = threading.Lock()
        self.total = self.limit = 0
        self.weakref = weakref.ref(self)  # of all blocks: if only garbage had it, a collection would clear it

    def malloc(self, nbytes: int) -> MemoryPointer:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if not size:
            return MemoryPointer(Memory(0), 0)
        stream = current_stream()
        with self.lock:
            chunk = self._recycled(size, stream)
        if chunk is None:
            chunk = Chunk(self._from_driver(size), 0, size, stream)
        self.in_use[chunk.ptr] = chunk
        block = PooledMemory(chunk, self)
        self.free_pending()
        for hook in hooks:
            about = {"device_id": block.device_id, "size": nbytes, "mem_size": size}
            hook.malloc_postprocess(**about, mem_ptr=block.ptr, pmem_id=id(block))
        return MemoryPointer(block, 0)

    def free_pending(self) -> None:
        """Put what was freed into the free lists, unless a call is at work on them, which does so at its end."""
        while self.freed and self.lock.acquire(blocking=False):
            try:
                while self.freed:
                    self._free(self.freed.popleft())
            finally:
                self.lock.release()

    def _recycled(self, size: int, stream: int) -> Chunk | None:
        free = self.free_chunks.get(stream, [])
        place = bisect.bisect_left(free, size, key=lambda chunk: chunk.size)
        if place == len(free):
            return None
        chunk = free.pop(place)
        rest = chunk.split(size)
        if rest is not None:
            self._insert(rest)
        return chunk

    def _insert(self, chunk: Chunk) -> None:
        bisect.insort(self.free_chunks.setdefault(chunk.stream, []), chunk, key=lambda c: c.size)

    def _from_driver(self, size: int) -> Memory:
        if self.limit and self.total + size > self.limit:
            raise OutOfMemoryError(size, self.total, self.limit)
        for again in (self.free_all_blocks, self._collect, None):
            try:
                found = self.allocator(size).mem
            except CUDARuntimeError as error:
                if error.status != NO_MEMORY:
                    raise
                if again is not None:
                    again()
                continue
            self.total += size
            return found  # type: ignore[return-value]  # CuPy's type, emulated
        raise OutOfMemoryError(size, self.total, self.limit)

    def _collect(self) -> None:
        gc.collect()
        self.free_all_blocks()

    def _free(self, ptr: int) -> None:
        chunk = self.in_use.pop(ptr)
        free = self.free_chunks.setdefault(chunk.stream, [])
        if chunk.next is not None and chunk.next in free:
            free.remove(chunk.next)
            chunk.merge(chunk.next)
        if chunk.prev is not None and chunk.prev in free:
            free.remove(chunk.prev)
            chunk.prev.merge(chunk)
            chunk = chunk.prev
        self._insert(chunk)

    def free_all_blocks(self, stream: Any = None) -> None:
        self.free_pending()
        with self.lock:
            for number, free in self.free_chunks.items():
                if stream is None or stream.ptr == number:
                    whole = [chunk for chunk in free if chunk.prev is None and chunk.next is None]
                    self.total -= sum(chunk.size for chunk in whole)
                    free[:] = [chunk for chunk in free if chunk not in whole]


class MemoryPool:
    """A pool for every device; hooks are told of the blocks of every pool, as CuPy does."""

    def __init__(self, allocator: Callable[[int], MemoryPointer] | None = None):
        self._allocator = allocator or _malloc
        self._pools: dict[int, _DevicePool] = {}
        _pools.add(self)

    def _here(self) -> _DevicePool:
        if current.device not in self._pools:
            self._pools[current.device] = _DevicePool(self._allocator)
        return self._pools[current.device]

    def malloc(self, nbytes: int) -> MemoryPointer:
        return self._here().malloc(nbytes)

    def used_bytes(self) -> int:
        self._here().free_pending()
        return sum(chunk.size for chunk in self._here().in_use.values())

    def total_bytes(self) -> int:
        return self._here().total

    def free_bytes(self) -> int:
        return self.total_bytes() - self.used_bytes()

    def free_all_blocks(self, stream: Any = None) -> None:
        self._here().free_all_blocks(stream)

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        self._here().limit = size or 0

    def get_limit(self) -> int:
        return self._here().limit


class MemoryHook:
    name = "MemoryHook"

    def __enter__(self):
        if any(hook.name == self.name for hook in hooks):
            raise KeyError(f"memory hook {self.name} already exists")
        hooks.append(self)
        return self

    def __exit__(self, *_):
        hooks.remove(self)

    def malloc_postprocess(self, **about): ...

    def free_postprocess(self, **about): ...


def _malloc(size: int) -> MemoryPointer:
    return MemoryPointer(Memory(size), 0)


_pools: weakref.WeakSet[MemoryPool] = weakref.WeakSet()
pool = MemoryPool()


def _legacy_stream() -> int:
    return 0


current_stream = _legacy_stream  # streams.py says which


_global = [pool.malloc]  # the allocator of those who set none


def get_allocator() -> Any:
    return current.allocator or _global[0]


def set_allocator(allocator: Any = None) -> None:
    if current.allocator is not None:
        raise ValueError("Can't change the global allocator inside `using_allocator` context manager")
    _global[0] = allocator or _malloc


def alloc(nbytes: int) -> MemoryPointer:
    """Memory of the allocator in use."""
    return get_allocator()(nbytes)


@contextmanager
def using_allocator(allocator: Any = None) -> Iterator[None]:
    before, current.allocator = current.allocator, allocator or _malloc
    try:
        yield
    finally:
        current.allocator = before


@contextmanager
def fresh() -> Iterator[None]:
    """Within the block the default pool is a new one, of which nothing is held."""
    global pool
    before, pool = (pool, _global[0]), MemoryPool()
    _global[0] = pool.malloc
    try:
        yield
    finally:
        pool, _global[0] = before


def reserved() -> int:
    """Bytes that all pools hold on the current device."""
    return sum(each.total_bytes() for each in _pools)


def used() -> int:
    """Bytes that arrays of all pools hold on the current device."""
    return sum(each.used_bytes() for each in _pools)
