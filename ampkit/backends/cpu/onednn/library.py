"""dnnl: oneDNN's library, found, loaded and looked over; `onednn` describes and runs primitives with it.

Any oneDNN 3 does: the wheel that the extra `cpu` brings, conda's, the system's. What keeps one from being used is said
in a line (`trouble`), never raised: without it the references run.
"""

from __future__ import annotations

import ctypes
import os
import site
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ampkit.base import dtypes
from ampkit.base.dtypes import DType

_STATUS = {1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 5: "runtime error"}
INVALID, UNIMPLEMENTED = 2, 3
_PAUSE_SOFT = 1  # omp_pause_soft of omp.h: threads end, settings stay


class Handle(ctypes.c_void_p):
    """What oneDNN made for us, given back when nobody holds it any more; one that was only lent has no `release`."""

    release: Any = None

    def __del__(self) -> None:
        if self.release is not None and not sys.is_finalizing():
            self.release(self)


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


class Library(NamedTuple):
    """oneDNN, loaded. slow: calls that let other Python threads run; quick: those that take nanoseconds.

    version: (major, minor, patch); isa: the instruction sets that it uses on this machine, a set of bits.
    """

    slow: Any
    quick: Any
    engine: Any
    stream: Any
    version: tuple[int, int, int]
    isa: int


class OneDNNError(RuntimeError):
    """A call of oneDNN failed; the message names the function and the status, `status` is its number."""

    def __init__(self, what: str, status: int):
        super().__init__(f"oneDNN: {what}: {_STATUS.get(status, status)}")
        self.status = status


# finding it


def library() -> Library | None:
    """oneDNN, or None where it cannot be used; `trouble` says why."""
    return _load()[0]


def trouble() -> str:
    """Why oneDNN cannot be used, in one line; "" if it can."""
    return _load()[1]


@cache
def _load() -> tuple[Library | None, str]:
    reason = "libdnnl.so.3 was not found: pip install 'ampkit[cpu]'"
    if sys.platform != "linux":
        return None, f"oneDNN is untried on {sys.platform}"
    for path in _places():
        try:
            slow, quick = ctypes.CDLL(path), ctypes.PyDLL(path)
        except OSError as error:
            if Path(path).exists() or "gomp" in str(error):
                reason = f"oneDNN could not be loaded: {error}"
            continue
        try:
            found, reason = _opened(slow, quick)
        except (OneDNNError, AttributeError) as error:
            reason = f"{path}: {error}"
        else:
            if found is not None:
                _outlast_forks(slow)
                return found, ""
            reason = f"{path}: {reason}"
    return None, reason


def _places() -> Iterator[str]:
    # Where wheels and conda put it, also the conda that a virtual environment was made of; then where the system looks,
    # by the name of version 3, and by the name that it finds, which may be an older one's. The user's folder counts
    # where Python itself looks into it: not with -I or -s, and not in a virtual environment.
    own = (site.getuserbase(),) if site.ENABLE_USER_SITE else ()
    for root in dict.fromkeys((sys.prefix, *own, sys.base_prefix)):
        yield str(Path(root) / "lib" / "libdnnl.so.3")
    yield from dict.fromkeys(("libdnnl.so.3", find_library("dnnl") or "libdnnl.so.3"))


def _opened(slow: Any, quick: Any) -> tuple[Library | None, str]:
    slow.dnnl_version.restype = ctypes.POINTER(_Version)
    slow.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    slow.dnnl_memory_desc_get_size.argtypes = [Handle]
    slow.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
    slow.dnnl_primitive_desc_query_md.argtypes = [Handle, ctypes.c_int, ctypes.c_int]
    slow.dnnl_primitive_execute.argtypes = [Handle, Handle, ctypes.c_int, Handle]
    quick.dnnl_memory_set_data_handle.argtypes = [Handle, Handle]
    quick.dnnl_stream_wait.argtypes = [Handle]
    found = slow.dnnl_version().contents
    if found.major != 3:
        return None, f"needs oneDNN 3, got {found.major}.{found.minor}.{found.patch}"
    engine = make(slow, "engine_create", 1, ctypes.c_size_t(0))
    stream = make(slow, "stream_create", engine, 1)
    version = (found.major, found.minor, found.patch)
    return Library(slow, quick, engine, stream, version, int(slow.dnnl_get_effective_cpu_isa())), ""


def _outlast_forks(slow: Any) -> None:
    # A forked child has none of its parent's OpenMP threads and would wait for them for ever. They end before the fork,
    # and each process starts its own; an OpenMP older than 5.0 cannot end them, and the child keeps to one thread.
    pause, limit = (getattr(slow, name, None) for name in ("omp_pause_resource_all", "omp_set_num_threads"))
    if pause is not None:
        os.register_at_fork(before=partial(pause, ctypes.c_int(_PAUSE_SOFT)))
    elif limit is not None:
        os.register_at_fork(after_in_child=partial(limit, ctypes.c_int(1)))


def make(lib: Any, name: str, *arguments: Any) -> Handle:
    """What `dnnl_<name>` makes of the arguments. Raises OneDNNError."""
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
    """The instruction sets that oneDNN uses here, for people; "" without it."""
    lib = library()
    return "" if lib is None else next((name for bits, name in _ISA.items() if lib.isa & bits == bits), hex(lib.isa))


_UNITS = {dtypes.float32: 0, dtypes.bfloat16: 0xFEF, dtypes.float16: 0x1EF}  # oneDNN's bits of an instruction set
_TILES_OF_FLOAT16 = 0x1FEF  # AMX for float16


@cache
def multiplies(dtype: DType) -> bool:
    """Whether products in `dtype`, summed in float32, are no slower here than float32's.

    bfloat16's without AMX are slower, with the units of AVX-512 too; float16's with those of AVX-512 are as fast.
    """
    return _has(_UNITS.get(dtype))


@cache
def convolves(dtype: DType) -> bool:
    """Whether convolutions in `dtype` are no slower here than float32's: float16's with AVX-512 take twice as long."""
    return _has(_TILES_OF_FLOAT16 if dtype == dtypes.float16 else _UNITS.get(dtype))


@cache
def flushes_bfloat16() -> bool:
    """Whether the CPU has instructions that round to bfloat16, which make 0 of its subnormals."""
    return _has(0xE7) or _has(0x1F)  # of AVX-512 and of AVX2


def _has(bits: int | None) -> bool:
    lib = library()
    return lib is not None and bits is not None and lib.isa & bits == bits
