"""CuPy's allocator, and what ampkit does where a device has no memory left: free what can be, then say who holds it.

Everything that runs on CuPy allocates here, so that a shortage anywhere is the same error.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from ampkit import backends

NO_MEMORY = 2  # cudaErrorMemoryAllocation
graph_pools: WeakSet[Any] = WeakSet()  # of recorded steps, on every device (see graphpool.py)


class Allocator:
    """The allocator that CuPy had, and what is done when it finds no memory. xp: CuPy, or what stands for it."""

    def __init__(self, xp: Any, inner: Any):
        self.xp, self.inner = xp, inner

    def __call__(self, size: int) -> Any:
        """Memory for `size` bytes of the current device. Raises ampkit's OutOfMemoryError."""
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
            pool.give_back()
        gc.collect()  # CuPy does where the driver has no more, but not where its pool has a limit
        try:
            return self.inner(size)
        except Exception as error:
            raise shortage(self.xp, error) from None


def install(xp: Any) -> Allocator:
    """The Allocator through which CuPy allocates, made the one in use unless the code that runs has chosen another."""
    inner = xp.cuda.get_allocator()
    if isinstance(inner, Allocator):
        return inner
    made = Allocator(xp, inner)
    with suppress(ValueError):  # within cupy.cuda.using_allocator
        xp.cuda.set_allocator(made)
    return made


def is_shortage(xp: Any, error: Exception) -> bool:
    """Whether an error of CuPy's says that a device has no memory left."""
    return isinstance(error, xp.cuda.memory.OutOfMemoryError) or getattr(error, "status", None) == NO_MEMORY


def shortage(xp: Any, error: Exception) -> Exception:
    """The error to raise for one of CuPy's on the current device: what was asked for, and who holds how much."""
    return backends.get(f"cuda:{xp.cuda.runtime.getDevice()}").out_of_memory_error(error)  # type: ignore[arg-type]
