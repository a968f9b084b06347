"""The compiled kernels, loaded: which library runs on this CPU, or why none does.

AMPKIT_CPU_ISA=x86-64-v3 chooses an instruction set below the CPU's; AMPKIT_CPU_ISA=none switches the kernels off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
from functools import cache
from typing import Any

from .. import caching_allocator, cpuinfo
from ..onednn import library as onednn
from . import numpy_arrays

# The flags of /proc/cpuinfo that an instruction set needs beyond the one before.
_V3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_BF16 = {"avx512_bf16"}
_NEEDS = {
    "x86-64": set[str](), "x86-64-v3": _V3, "x86-64-v4": _V3 | _V4, "x86-64-v4-bf16": _V3 | _V4 | _BF16,
    "armv8-a": set[str](),
}  # fmt: skip


@cache
def library() -> Any:
    """The loaded library, a ctypes.CDLL, or None where it cannot be used; `unavailable_reason` says why."""
    return _load()[0]


def instruction_set() -> str:
    """The instruction set that the loaded library was compiled for; "" without one."""
    return _load()[1]


@cache
def has_products() -> bool:
    """Whether the loaded library has kernels of products, which are compiled for CPUs that multiply and add at once."""
    return hasattr(library(), "matmul_entry")


def unavailable_reason() -> str:
    """Why the compiled kernels cannot be used, in one line; "" if they can."""
    return _load()[2]


@cache
def _load() -> tuple[Any, str, str]:
    from . import build  # what a compiler takes is loaded with the first kernel, not with ampkit

    chosen = os.environ.get("AMPKIT_CPU_ISA", "")
    flags, built = cpuinfo.flags(), build.read_manifest()
    usable = [each for each in build.instruction_sets() if _NEEDS[each] <= flags]
    usable = [each for each in usable if build.library_name(each) in built] or usable
    if chosen == "none":
        return None, "", "switched off by AMPKIT_CPU_ISA=none"
    if not caching_allocator.HAS_STRUCT:  # through which elementwise kernels find the data of arrays
        return None, "", "they need CPython, and NumPy's arrays as it lays them out there"
    if not usable:
        return None, "", f"there are none for {sys.platform} on {platform.machine()}"
    if chosen and chosen not in usable:
        return None, "", f"AMPKIT_CPU_ISA: needs one of {', '.join(usable)} or none, got {chosen}"
    name = build.library_name(chosen or usable[-1])
    if reason := _why_not(name):
        return None, "", reason
    try:
        found = ctypes.CDLL(str(build.LIBRARIES / name))
        _hand_over_threads(found)
        numpy_arrays.describe(found)
    except (OSError, AttributeError) as error:
        return None, "", f"{name} could not be loaded: {error}"
    if not numpy_arrays.is_read_right(found):
        return None, "", "they cannot read the arrays of this NumPy"
    return found, chosen or usable[-1], ""


def _why_not(name: str) -> str:
    """Why the library `name` must not be loaded; "" for one that was built, whole, from the present sources."""
    from . import build

    path, manifest = build.LIBRARIES / name, build.read_manifest()
    again = f"`python {build.__file__}`, with Clang or the package ziglang installed, compiles them"
    if not path.is_file() or name not in manifest:
        return f"they are not built: {again}"
    if manifest.get("sources") != build.digest():
        return f"they were built from other sources: {again}"
    if hashlib.sha256(path.read_bytes()).hexdigest() != manifest[name]:
        return f"{name} is damaged: {again}"
    return ""


def _hand_over_threads(found: Any) -> None:
    # oneDNN's threads, where it runs on libgomp: a second team of as many threads would compete with them.
    found.use_openmp.argtypes, found.set_pool_threads.argtypes = [ctypes.c_void_p] * 4, [ctypes.c_int64]
    lib = onednn.library()
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")
    if lib is not None and all(hasattr(lib.cdll, name) for name in names):
        found.use_openmp(*(ctypes.cast(getattr(lib.cdll, name), ctypes.c_void_p) for name in names))
    found.set_pool_threads(_initial_threads())


def _initial_threads() -> int:
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else usable_cpus()


def usable_cpus() -> int:
    """The number of CPUs that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


def set_num_threads(threads: int) -> None:
    """Set the number of threads of kernels where they do not run on oneDNN's."""
    if (found := library()) is not None:
        found.set_pool_threads(threads)
