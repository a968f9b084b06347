"""`ampkit.cpu`: the memory of arrays on the CPU, with the names of torch.cuda.

Figures are bytes of the arrays of 128 KiB and more that creation functions and CPU kernels make, with their gradients,
in whole pages, and of the scratchpad that each thread keeps for oneDNN. Smaller arrays, those that NumPy makes for a
reference or a caller, and what oneDNN keeps for itself are not among them.

A freed array's memory serves later arrays of its size. What is kept so, with what is in use, stays within 1.25 times
the most that was in use lately: in the last 4,096 to 8,192 such arrays made. A training step, which makes a few hundred
to a thousand, finds its memory again; the quarter is for arrays of other sizes.
"""

from __future__ import annotations

from typing import Any

from . import malloc
from .caching_allocator import allocator

__all__ = [
    "empty_cache", "max_memory_allocated", "memory_allocated", "memory_reserved", "reset_peak_memory_stats",
]  # fmt: skip


def empty_cache() -> None:
    """Return memory that no array uses to the system."""
    allocator().clear()
    malloc.return_freed()


def memory_allocated(device: Any = None) -> int:
    """Bytes of the arrays. `device` has no effect: there is one CPU."""
    return allocator().used


def memory_reserved(device: Any = None) -> int:
    """Bytes of the arrays and of freed memory that is kept for later ones."""
    held = allocator()
    with held.lock:
        return held.used + held.cached


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that arrays held since `reset_peak_memory_stats`, or since the start."""
    return allocator().peak


def reset_peak_memory_stats(device: Any = None) -> None:
    """Make `max_memory_allocated` begin anew, with what arrays hold now."""
    allocator().reset_peak()
