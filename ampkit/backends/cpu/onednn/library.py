"""The oneDNN library: found, loaded through ctypes and queried for its instruction sets.

Any oneDNN 3 serves: the wheel of the extra `cpu`, conda's, the system's. If none can be used, `unavailable_reason` says
why in one line and nothing is raised: the references run.
"""

from __future__ import annotations

import ctypes
import os
import site
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ampkit.base import dtypes
from ampkit.base.dtypes import DType

from .. import cpuinfo

_STATUS = {1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 5: "runtime error"}
INVALID, UNIMPLEMENTED = 2, 3
_PAUSE_SOFT = 1  # omp_pause_soft of omp.h: threads end, settings stay


class Handle(ctypes.c_void_p):
    """An object of oneDNN's, destroyed with its last reference; a borrowed one has no `release`."""

    release: Any = None

    def __del__(self) -> None:
        if self.release is not None and not sys.is_finalizing():
            self.release(self)


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


class Library(NamedTuple):
    """oneDNN, loaded twice: cdll releases the GIL during a call, pydll does not and serves calls of nanoseconds.

    version: (major, minor, patch); isa: the bits of dnnl_cpu_isa_t that oneDNN uses on this machine.
    """

    cdll: Any
    pydll: Any
    engine: Any
    stream: Any
    version: tuple[int, int, int]
    isa: int


class OneDNNError(RuntimeError):
    """A call of oneDNN failed; the message names the function and the status, `status` is its number."""

    def __init__(self, what: str, status: int):
        super().__init__(f"oneDNN: {what}: {_STATUS.get(status, status)}")
        self.status = status


def library() -> Library | None:
    """The loaded library, or None where it cannot be used; `unavailable_reason` says why."""
    return _load()[0]


def unavailable_reason() -> str:
    """Why oneDNN cannot be used, in one line; "" if it can."""
    return _load()[1]


@cache
def _load() -> tuple[Library | None, str]:
    reason = "libdnnl.so.3 was not found: pip install 'ampkit[cpu]'"
    if sys.platform != "linux":
        return None, f"oneDNN is untested on {sys.platform}"
    for path in _candidate_paths():
        try:
            cdll, pydll = ctypes.CDLL(path), ctypes.PyDLL(path)
        except OSError as error:
            if Path(path).exists() or "gomp" in str(error):
                reason = f"oneDNN could not be loaded: {error}"
            continue
        try:
            found, reason = _initialize(cdll, pydll)
        except (OneDNNError, AttributeError) as error:
            reason = f"{path}: {error}"
        else:
            if found is not None:
                _end_threads_before_forks(cdll)
                return found, ""
            reason = f"{path}: {reason}"
    return None, reason


def _candidate_paths() -> Iterator[str]:
    # First where wheels and conda install it (sys.base_prefix: the conda environment under a virtual environment),
    # then the system's search path, by the name of version 3 and by the one that find_library returns. The user's
    # site counts where Python itself uses it: not with -I or -s, and not in a virtual environment.
    from ctypes.util import find_library  # which loads what starts programs

    own = (site.getuserbase(),) if site.ENABLE_USER_SITE else ()
    for root in dict.fromkeys((sys.prefix, *own, sys.base_prefix)):
        yield str(Path(root) / "lib" / "libdnnl.so.3")
    yield from dict.fromkeys(("libdnnl.so.3", find_library("dnnl") or "libdnnl.so.3"))


def _initialize(cdll: Any, pydll: Any) -> tuple[Library | None, str]:
    cdll.dnnl_version.restype = ctypes.POINTER(_Version)
    cdll.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    cdll.dnnl_memory_desc_get_size.argtypes = [Handle]
    cdll.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
    cdll.dnnl_primitive_desc_query_md.argtypes = [Handle, ctypes.c_int, ctypes.c_int]
    cdll.dnnl_primitive_execute.argtypes = [Handle, Handle, ctypes.c_int, Handle]
    pydll.dnnl_memory_set_data_handle.argtypes = [Handle, Handle]
    pydll.dnnl_stream_wait.argtypes = [Handle]
    found = cdll.dnnl_version().contents
    if found.major != 3:
        return None, f"needs oneDNN 3, got {found.major}.{found.minor}.{found.patch}"
    engine = create(cdll, "engine_create", 1, ctypes.c_size_t(0))
    stream = create(cdll, "stream_create", engine, 1)
    version = (found.major, found.minor, found.patch)
    return Library(cdll, pydll, engine, stream, version, int(cdll.dnnl_get_effective_cpu_isa())), ""


def _end_threads_before_forks(cdll: Any) -> None:
    # A forked child has none of its parent's OpenMP threads and would wait for them for ever. So they end before the
    # fork, and each process starts its own; OpenMP before 5.0 cannot end them, and the child uses one thread.
    pause, limit = (getattr(cdll, name, None) for name in ("omp_pause_resource_all", "omp_set_num_threads"))
    if pause is not None:
        os.register_at_fork(before=partial(pause, ctypes.c_int(_PAUSE_SOFT)))
    elif limit is not None:
        os.register_at_fork(after_in_child=partial(limit, ctypes.c_int(1)))


def create(lib: Any, name: str, *arguments: Any) -> Handle:
    """Call dnnl_<name> and return the handle that it writes. Raises OneDNNError."""
    handle = Handle()
    status = getattr(lib, f"dnnl_{name}")(ctypes.byref(handle), *arguments)
    if status:
        raise OneDNNError(name, status)
    kind = "primitive_desc" if name.endswith("_primitive_desc_create") else name.partition("_c")[0]
    handle.release = getattr(lib, f"dnnl_{kind}_destroy")
    return handle


_ISA = {
    0x1FEF: "AVX-512 with AMX for bfloat16 and float16",
    0xFEF: "AVX-512 with AMX for bfloat16",
    0x1EF: "AVX-512 with float16 units",
    0xE7: "AVX-512 with bfloat16 units",
    0x67: "AVX-512 with VNNI",
    0x27: "AVX-512",
    0x7: "AVX2",
}


def isa() -> str:
    """The instruction sets that oneDNN uses on this machine, as text; "" without oneDNN."""
    lib = library()
    return "" if lib is None else next((name for bits, name in _ISA.items() if lib.isa & bits == bits), hex(lib.isa))


_AVX512_BFLOAT16, _AMX_BFLOAT16, _AVX512_FLOAT16, _AMX_FLOAT16 = 0xE7, 0xFEF, 0x1EF, 0x1FEF
_AVX512_VNNI, _AVX2_VNNI = 0x67, 0xF


@cache
def has_fast_matmul(dtype: DType) -> bool:
    """Whether matrix products in `dtype`, accumulated in float32, are no slower than float32's on this CPU.

    bfloat16 needs AMX, or AMD's AVX-512 instructions for it, which compute twice as much per cycle as float32's;
    Intel's compute no more. float16 needs AVX-512's float16.
    """
    if dtype == dtypes.bfloat16:
        amd = cpuinfo.entry("vendor_id") == "AuthenticAMD"
        return has_amx() or (amd and _has(_AVX512_BFLOAT16))
    return (dtype == dtypes.float32 and library() is not None) or (dtype == dtypes.float16 and _has(_AVX512_FLOAT16))


def has_amx() -> bool:
    """Whether oneDNN multiplies bfloat16 matrices by AMX on this CPU."""
    return _has(_AMX_BFLOAT16)


@cache
def has_fast_conv(dtype: DType) -> bool:
    """Whether convolutions in `dtype` are no slower than float32's on this CPU: float16 needs AMX, too."""
    return _has(_AMX_FLOAT16) if dtype == dtypes.float16 else has_fast_matmul(dtype)


def has_exact_int8() -> bool:
    """Whether sums of products of 8-bit codes are exact and fast on this CPU: by VNNI or AMX.

    Older ones add pairs of products in 16 bits, which saturate.
    """
    return _has(_AVX512_VNNI) or _has(_AVX2_VNNI)


@cache
def flushes_bfloat16() -> bool:
    """Whether this CPU rounds to bfloat16 in hardware, which flushes bfloat16 subnormals to zero."""
    return _has(_AVX512_BFLOAT16) or _has(0x1F)  # AVX-512 and AVX2 variants


def _has(bits: int) -> bool:
    lib = library()
    return lib is not None and lib.isa & bits == bits
