"""The number of threads of matrix products: oneDNN's OpenMP, and the OpenBLAS that NumPy loaded.

NumPy's wheels contain OpenBLAS under prefixed names; system builds link one with plain names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, StateError

from .native import library as native
from .native.library import usable_cpus as usable_cpus
from .onednn import primitive
from .onednn.library import library

# numpy.libs/ on Linux and Windows, numpy/.dylibs/ on macOS: where wheels keep their libraries.
_BUNDLED = ("../numpy.libs/*openblas*", ".dylibs/*openblas*")
_SPELLINGS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


def set_num_threads(threads: int) -> None:
    """Set the number of threads of matrix products and of everything else that oneDNN runs.

    With oneDNN, NumPy's BLAS gets one thread: its idle threads would spin on the CPUs that oneDNN's need, and a step of
    a small model would take twice as long. oneDNN's number belongs to the calling Python thread. Raises ArgumentError
    for a number below 1, StateError without oneDNN where NumPy's BLAS is not OpenBLAS and cannot be set.
    """
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ArgumentError("set_num_threads", "an integer of at least 1", repr(threads))
    blas, team = _openblas_function("set_num_threads"), _openmp_function("omp_set_num_threads")
    if blas is None and team is None:
        cure = "set this BLAS's own environment variable before Python starts (VECLIB_MAXIMUM_THREADS, MKL_NUM_THREADS)"
        raise StateError("set_num_threads", "a NumPy built on OpenBLAS", blas_name(), cure)
    if team is not None:
        if threads != get_num_threads():
            primitive.clear_cache()
        team(ctypes.c_int(threads))
    if blas is not None:
        blas(ctypes.c_int(threads if team is None else 1))
    native.set_num_threads(threads)


def set_own_threads(threads: int) -> None:
    """Set oneDNN's number of threads for the calling Python thread alone, where there is oneDNN."""
    team = _openmp_function("omp_set_num_threads")
    if team is not None and threads != get_num_threads():
        primitive.clear_cache()
        team(ctypes.c_int(threads))


def compute_alone() -> None:
    """Let the calling thread compute products by itself, for bits that no number of threads decides.

    NumPy's BLAS then has one thread, too, in the whole process.
    """
    set_own_threads(1)
    blas = _openblas_function("set_num_threads")
    if blas is not None:
        blas(ctypes.c_int(1))


def get_num_threads() -> int:
    """The number of threads of matrix products; where no library tells, the number of usable CPUs."""
    count = _openmp_function("omp_get_max_threads") or _openblas_function("get_num_threads")
    return usable_cpus() if count is None else int(count())


def can_set_num_threads() -> bool:
    """Whether `set_num_threads` finds a library to set."""
    return (_openblas_function("set_num_threads") or _openmp_function("omp_set_num_threads")) is not None


def _openmp_function(name: str) -> Any:
    # A function of the OpenMP runtime that oneDNN is linked with, or None.
    found = library()
    return None if found is None else getattr(found.cdll, name, None)


def blas_name() -> str:
    """Name and version of the BLAS that NumPy was built with, as text."""
    built: Any = np.show_config(mode="dicts")
    found = built.get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'an unknown BLAS')} {found.get('version', '')}".strip()


def blas_kernels() -> str | None:
    """The processor family whose kernels OpenBLAS selected on this machine (`SkylakeX`), or None."""
    name = _openblas_function("get_corename")
    if name is None:
        return None
    name.restype = ctypes.c_char_p
    return bytes(name()).decode()


@cache
def _openblas_function(name: str) -> Any:
    """OpenBLAS's function of this name without prefix, or None."""
    for each in _libraries():
        for spelling in _SPELLINGS:
            found = getattr(each, spelling.format(name), None)
            if found is not None:
                return found
    return None


def _libraries() -> Iterator[ctypes.CDLL]:
    # dlsym on an extension module finds the library that it links, bundled or the system's; not on Windows.
    root = Path(np.__file__).parent
    extensions = (root / "_core").glob("_multiarray_umath.*")
    for path in (*extensions, *(file for pattern in _BUNDLED for file in root.glob(pattern))):
        try:
            yield ctypes.CDLL(str(path))
        except OSError:
            continue
