"""The memory of the emulated device, counted as CuPy's pool counts: blocks of 512 bytes, a limit, hooks, one error."""

from __future__ import annotations

import weakref
from typing import Any

ALL = 80 << 30  # bytes of the card
GRAIN = 512


class OutOfMemoryError(MemoryError):
    """In CuPy's words."""

    def __init__(self, size: int, total: int, limit: int = 0):
        line = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(line + (f", limit set to: {limit:,} bytes)." if limit else ")."))


class MemoryHook:
    name = "MemoryHook"

    def __enter__(self):
        if any(hook.name == self.name for hook in pool.hooks):
            raise KeyError(f"memory hook {self.name} already exists")
        pool.hooks.append(self)
        return self

    def __exit__(self, *_):
        pool.hooks.remove(self)

    def malloc_postprocess(self, **about): ...

    def free_postprocess(self, **about): ...


class Pool:
    def __init__(self):
        self.used = self.total = self.limit = 0
        self.hooks: list[Any] = []
        self._live: dict[int, int] = {}

    def take(self, array):
        """Count `array`, which has memory of its own, until it is gone."""
        if id(array) in self._live or not array.nbytes:
            return
        size = -(-array.nbytes // GRAIN) * GRAIN
        if self.used + size > (self.limit or ALL):
            raise OutOfMemoryError(size, self.total, self.limit)
        self._live[id(array)] = size
        weakref.finalize(array, self._give, id(array)).atexit = False
        self.used += size
        self.total = max(self.total, self.used)
        for hook in self.hooks:
            hook.malloc_postprocess(device_id=0, size=array.nbytes, mem_size=size, mem_ptr=array.ctypes.data, pmem_id=1)

    def _give(self, key):
        size = self._live.pop(key)
        self.used -= size
        for hook in self.hooks:
            hook.free_postprocess(device_id=0, mem_size=size, mem_ptr=1, pmem_id=1)

    def used_bytes(self):
        return self.used

    def total_bytes(self):
        return self.total

    def free_all_blocks(self, stream=None):
        self.total = self.used

    def set_limit(self, size=None, fraction=None):
        self.limit = size or 0

    def get_limit(self):
        return self.limit


pool = Pool()
