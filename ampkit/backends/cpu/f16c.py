"""f16c: float16 to float32 and back by the two instructions that x86-64 has for it, eight values at a time.

Nothing in reach of Python issues them: NumPy converts a value at a time, and oneDNN has fast code only for CPUs that
compute in float16. So two loops of twenty instructions are written into a page of memory and called, by all threads of
oneDNN's team; oneDNN does so with all of its code. Where that cannot be, `float16` converts by arithmetic.
Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: VCVTPH2PS, VCVTPS2PH.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from functools import cache
from typing import Any

import numpy as np

from .caching_allocator import address
from .onednn.library import library

HostArray = np.ndarray[Any, Any]

_LANES = 8
_SHARED = 1 << 15  # elements; fewer are converted before another thread wakes up

# void convert(struct { int64 next, size; void *source, *target; } *job), in the calling convention of System V
_TAKE = """
b8 00 20 00 00     mov eax, 8192                # start: elements of a piece
f0 48 0f c1 07     lock xadd [rdi], rax         # the next piece; several threads take one after the other
48 8b 4f 08        mov rcx, [rdi+8]
48 29 c1           sub rcx, rax
7e 36              jle end
ba 00 20 00 00     mov edx, 8192
48 39 d1           cmp rcx, rdx
48 0f 4f ca        cmovg rcx, rdx               # how many of it there are
48 8b 77 10        mov rsi, [rdi+16]
48 8b 57 18        mov rdx, [rdi+24]
"""
_WIDEN = """
48 8d 34 46        lea rsi, [rsi+2*rax]
48 8d 14 82        lea rdx, [rdx+4*rax]
90                 nop                          # loop: as long as that of _NARROW, for the jumps
c4 e2 7d 13 06     vcvtph2ps ymm0, [rsi]
c5 fc 11 02        vmovups [rdx], ymm0
48 83 c6 10        add rsi, 16
48 83 c2 20        add rdx, 32
"""
_NARROW = """
48 8d 34 86        lea rsi, [rsi+4*rax]
48 8d 14 42        lea rdx, [rdx+2*rax]
c5 fc 10 06        vmovups ymm0, [rsi]          # loop
c4 e3 7d 1d 02 00  vcvtps2ph [rdx], ymm0, 0     # 0: to the nearest, ties to even, whatever the thread's mode
48 83 c6 20        add rsi, 32
48 83 c2 10        add rdx, 16
"""
_REPEAT = """
48 83 e9 08        sub rcx, 8
7f e8              jg loop
eb b7              jmp start
c5 f8 77           vzeroupper                   # end
c3                 ret
"""


class _Job(ctypes.Structure):
    _fields_ = (
        ("next", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
    )


def convert(source: HostArray, target: HostArray) -> bool:
    """Write `source` [n] to `target` [n], one of them float16, the other float32, neither with gaps.

    To the nearest, ties to even; NaN stays NaN. False for fewer than 8, and where the machine has no way.
    """
    found = _routines()
    if found is None or source.size < _LANES:
        return False
    narrows, size = source.itemsize > target.itemsize, source.size
    of, to, whole = address(source), address(target), size - size % _LANES
    _run(found[narrows], whole, of, to)
    if whole < size:  # the last 8, some of them a second time
        rest = size - _LANES
        _run(found[narrows], _LANES, of + rest * source.itemsize, to + rest * target.itemsize)
    return True


def there() -> bool:
    """Whether the machine has a way."""
    return _routines() is not None


def _run(routine: Any, size: int, source: int, target: int) -> None:
    # By every thread of the OpenMP that oneDNN was linked with, if that pays.
    job = ctypes.byref(_Job(0, size, source, target))
    team = _team() if size >= _SHARED else None
    if team is None:
        routine(job)
    else:
        team(routine, job, 0, 0)


@cache
def _team() -> Any:
    found = library()
    return None if found is None else getattr(found.cdll, "GOMP_parallel", None)


@cache
def _routines() -> tuple[Any, Any, Any] | None:
    """What widens, what narrows, and the memory that both stand in; None where that is impossible."""
    known = sys.platform.startswith("linux") and platform.machine() == "x86_64"
    return _written() if known and _instructions() else None


def _instructions() -> bool:
    # NumPy has asked the CPU and the system.
    from numpy._core import _multiarray_umath as numpys

    return bool(getattr(numpys, "__cpu_features__", {}).get("F16C"))


def _written() -> tuple[Any, Any, Any] | None:
    widen, narrow = (_bytes(_TAKE + kernel + _REPEAT) for kernel in (_WIDEN, _NARROW))
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
    page.write(widen + narrow)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    protect = ctypes.CDLL(None).mprotect  # writable before, executable after, never both
    if protect(ctypes.c_void_p(start), ctypes.c_size_t(len(page)), mmap.PROT_READ | mmap.PROT_EXEC):
        return None
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    return kind(start), kind(start + len(widen)), page


def _bytes(listing: str) -> bytes:
    # What stands before two spaces.
    return bytes.fromhex("".join(line.partition("  ")[0] for line in listing.splitlines()))
