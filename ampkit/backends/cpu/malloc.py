"""malloc settings of a training process: freed memory stays in the process.

glibc returns large arrays to the system as soon as they are freed, and the system fills the pages of each new one with
zeros: in a training step, which allocates and frees the same arrays over and over, that can cost more than the
arithmetic (mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD).
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_NEVER = 2**31 - 1
_LARGEST = 32 * 2**20  # bytes; the most that glibc accepts on 64 bits


def keep_freed() -> bool:
    """Make malloc keep freed arrays of up to 32 MiB; returns whether this C library has the setting.

    For processes that only train: their memory use never falls below its peak.
    """
    if not sys.platform.startswith("linux"):
        return False
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    return tune is not None and bool(tune(_MMAP_THRESHOLD, _LARGEST)) and bool(tune(_TRIM_THRESHOLD, _NEVER))


def return_freed() -> bool:
    """Make malloc return freed memory to the system; returns whether this C library can (malloc_trim(3))."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    return trim is not None and bool(trim(0))
