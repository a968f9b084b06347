"""The threads of matrix products: oneDNN's, and OpenBLAS's, reached in the library that NumPy itself loaded.

NumPy's wheels bring OpenBLAS with them under prefixed names; system builds link one with the plain names.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, StateError

from .onednn import primitive
from .onednn.library import library

# numpy.libs/ on Linux and Windows, numpy/.dylibs/ on macOS: where wheels keep what they bring.
_BROUGHT = ("../numpy.libs/*openblas*", ".dylibs/*openblas*")
_SPELLINGS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


def set_num_threads(threads: int) -> None:
    """Let matrix products, and what else oneDNN runs, use `threads` threads, from the next one on.

    With oneDNN, NumPy's BLAS gets one: its idle threads go on spinning, on the CPUs that oneDNN's want, and a step of a
    small model takes twice as long. oneDNN's count is that of the Python thread that calls this. Raises ArgumentError
    for a number below 1, StateError where there is no oneDNN and NumPy's BLAS is no OpenBLAS and cannot be told.
    """
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ArgumentError("set_num_threads", "an integer of at least 1", repr(threads))
    blas, team = _function("set_num_threads"), _team("omp_set_num_threads")
    if blas is None and team is None:
        cure = "set this BLAS's own environment variable before Python starts (VECLIB_MAXIMUM_THREADS, MKL_NUM_THREADS)"
        raise StateError("set_num_threads", "a NumPy built on OpenBLAS", blas_name(), cure)
    if team is not None:
        if threads != get_num_threads():
            primitive.forget()
        team(ctypes.c_int(threads))
    if blas is not None:
        blas(ctypes.c_int(threads if team is None else 1))


def get_num_threads() -> int:
    """How many threads matrix products use; where nothing tells, how many CPUs this process may use."""
    count = _team("omp_get_max_threads") or _function("get_num_threads")
    return usable_cpus() if count is None else int(count())


def alone() -> None:
    """Let what oneDNN runs use one thread in the Python thread that calls this, which is one of several at work."""
    if (team := _team("omp_set_num_threads")) is not None:
        team(ctypes.c_int(1))


def settable() -> bool:
    """Whether `set_num_threads` has somebody to tell."""
    return (_function("set_num_threads") or _team("omp_set_num_threads")) is not None


def _team(name: str) -> Any:
    # A function of the OpenMP that oneDNN was linked with, or None.
    found = library()
    return None if found is None else getattr(found.slow, name, None)


def usable_cpus() -> int:
    """How many CPUs this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


def blas_name() -> str:
    """Name and version of the BLAS that NumPy was built on, for people."""
    built: Any = np.show_config(mode="dicts")
    found = built.get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'an unknown BLAS')} {found.get('version', '')}".strip()


def blas_kernels() -> str | None:
    """The processor family whose kernels OpenBLAS selected on this machine (`SkylakeX`), or None."""
    name = _function("get_corename")
    if name is None:
        return None
    name.restype = ctypes.c_char_p
    return bytes(name()).decode()


@cache
def _function(name: str) -> Any:
    """The function of OpenBLAS with this plain name, or None."""
    for each in _libraries():
        for spelling in _SPELLINGS:
            found = getattr(each, spelling.format(name), None)
            if found is not None:
                return found
    return None


def _libraries() -> Iterator[ctypes.CDLL]:
    # A look through an extension module finds what it links, brought along or of the system. Windows does not look on.
    root = Path(np.__file__).parent
    extensions = (root / "_core").glob("_multiarray_umath.*")
    for path in (*extensions, *(file for pattern in _BROUGHT for file in root.glob(pattern))):
        try:
            yield ctypes.CDLL(str(path))
        except OSError:
            continue
