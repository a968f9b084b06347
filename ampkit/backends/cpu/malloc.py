"""The C library's memory: what one step's arrays leave free, the next step's arrays take.

glibc hands large arrays back to the system as soon as they are freed, and the system fills the pages of each new one
with zeros: in a training step, which makes and frees the same arrays over and over, that can cost more than the
arithmetic (mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD).
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_NEVER = 2**31 - 1
_LARGEST = 32 * 2**20  # glibc takes no larger one on 64 bits


def keep_freed() -> bool:
    """Have the process keep what it frees, up to arrays of 32 MiB; whether this C library can be told so.

    For processes that do nothing but train: they stay as large as they ever were.
    """
    if not sys.platform.startswith("linux"):
        return False
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    return tune is not None and bool(tune(_MMAP_THRESHOLD, _LARGEST)) and bool(tune(_TRIM_THRESHOLD, _NEVER))
