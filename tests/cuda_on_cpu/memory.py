"""The memory of the emulated device, counted as CuPy's pools count: blocks of 512 bytes, a limit, hooks, one error."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

ALL = 80 << 30  # bytes of the card
GRAIN = 512
hooks: list[Any] = []  # told of all that is allocated and freed
_live: set[int] = set()  # arrays that have been counted
_next = itertools.count(1 << 40, 1 << 20)


class OutOfMemoryError(MemoryError):
    """In CuPy's words."""

    def __init__(self, size: int, total: int, limit: int = 0):
        line = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(line + (f", limit set to: {limit:,} bytes)." if limit else ")."))


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


class MemoryPool:
    """Hooks are told of every pool's blocks, as CuPy does. What was freed stays the pool's."""

    def __init__(self):
        self.used = self.total = self.limit = 0
        self._spare: dict[int, list[int]] = {}  # addresses to be given out again, by size
        _pools.add(self)

    def malloc(self, nbytes):
        size = -(-nbytes // GRAIN) * GRAIN
        others = sum(pool.total for pool in _pools if pool is not self)
        if self.used + size > (self.limit or ALL) or others + self.used + size > ALL:
            raise OutOfMemoryError(size, self.total, self.limit)
        self.used += size
        self.total = max(self.total, self.used)
        spare = self._spare.get(size)
        block = Block(weakref.ref(self), spare.pop() if spare else next(_next), size)
        for hook in hooks:
            hook.malloc_postprocess(device_id=0, size=nbytes, mem_size=size, mem_ptr=block.ptr, pmem_id=id(block))
        return block

    def _free(self, block):
        self.used -= block.size
        self._spare.setdefault(block.size, []).append(block.ptr)
        for hook in hooks:
            hook.free_postprocess(device_id=0, mem_size=block.size, mem_ptr=block.ptr, pmem_id=id(block))

    def used_bytes(self):
        return self.used

    def total_bytes(self):
        return self.total

    def free_all_blocks(self, stream=None):
        self.total = self.used
        self._spare.clear()

    def set_limit(self, size=None, fraction=None):
        self.limit = size or 0

    def get_limit(self):
        return self.limit


class Block:
    """A pointer to a piece of memory of a pool, which may be gone first; then nobody is told."""

    def __init__(self, pool: Callable[[], MemoryPool | None], ptr: int, size: int):
        self.pool, self.ptr, self.size = pool, ptr, size

    def free(self):
        pool = self.pool()
        if pool is not None:
            pool._free(self)


_pools: weakref.WeakSet[MemoryPool] = weakref.WeakSet()
pool = MemoryPool()
_allocators = [pool.malloc]


@contextmanager
def using_allocator(allocator=None):
    _allocators.append(allocator or (lambda nbytes: Block(lambda: None, 0, 0)))
    try:
        yield
    finally:
        _allocators.pop()


def take(array):
    """Count `array`, which has memory of its own, until it is gone."""
    if id(array) in _live or not array.nbytes:
        return
    block = _allocators[-1](array.nbytes)
    _live.add(id(array))
    weakref.finalize(array, _give, id(array), block).atexit = False


def _give(key, block):
    _live.discard(key)
    block.free()


def reserved():
    """Bytes that all pools hold."""
    return sum(each.total for each in _pools)


def used():
    """Bytes that arrays of all pools hold."""
    return sum(each.used for each in _pools)
