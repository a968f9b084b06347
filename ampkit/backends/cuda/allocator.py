"""CuPy's allocator with a retry: if the device is out of memory, free the pools and allocate again, or raise.

All CuPy code allocates through it, so that every shortage raises the same error.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from ampkit import backends

NO_MEMORY = 2  # cudaErrorMemoryAllocation
graph_pools: WeakSet[Any] = WeakSet()  # of recorded steps, on every device (see graph_pool.py)


class Allocator:
    """Wraps the allocator `inner` of CuPy. xp: CuPy, or its emulation."""

    def __init__(self, xp: Any, inner: Any):
        self.xp, self.inner = xp, inner

    def __call__(self, size: int) -> Any:
        """Allocate `size` bytes on the current device. Raises ampkit's OutOfMemoryError."""
        try:
            return self.inner(size)
        except Exception as error:
            if not is_shortage(self.xp, error):
                raise
            device = self.xp.cuda.runtime.getDevice()
            pools = [pool for pool in graph_pools if pool.xp is self.xp and pool.index == device]
            if any(pool.recording for pool in pools):
                raise shortage(self.xp, error) from None
        for pool in pools:
            pool.release()
        gc.collect()  # CuPy does where the driver has no more, but not where its pool has a limit
        try:
            return self.inner(size)
        except Exception as error:
            raise shortage(self.xp, error) from None


def install(xp: Any) -> Allocator:
    """Make an Allocator CuPy's current one, unless the caller is inside `cupy.cuda.using_allocator`; return it."""
    inner = xp.cuda.get_allocator()
    if isinstance(inner, Allocator):
        return inner
    made = Allocator(xp, inner)
    with suppress(ValueError):  # within cupy.cuda.using_allocator
        xp.cuda.set_allocator(made)
    return made


def is_shortage(xp: Any, error: Exception) -> bool:
    """Whether a CuPy error means that the device is out of memory."""
    return isinstance(error, xp.cuda.memory.OutOfMemoryError) or getattr(error, "status", None) == NO_MEMORY


def shortage(xp: Any, error: Any) -> Exception:
    """The OutOfMemoryError for a CuPy error on the current device: what was requested, and who holds how much."""
    return backends.get(f"cuda:{xp.cuda.runtime.getDevice()}").out_of_memory_error(error)
