"""CUDA kernels: the entries of the `.cu` files under kernels/cuda/, compiled by NVRTC at their first launch.

    launch("nn/softmax", typed("softmax_forward", x.dtype, out.dtype), rows, 256, x, out, np.int64(rows), np.int64(n))

A file ends with comments that list its entries (see include/storage.cuh), which its tests compile and run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import DType, bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8
from ampkit.base.errors import DeviceError

KERNELS = Path(__file__).parents[2] / "kernels" / "cuda"
FOLDERS = (KERNELS, KERNELS.parent)  # where included files are: `shared/` is beside `cuda/`


def _digest() -> str:
    """A digest of all sources, for CuPy's compile cache, whose key does not cover included files."""
    sources = *sorted(KERNELS.rglob("*.cu*")), *sorted((KERNELS.parent / "shared").glob("*.h"))
    return sha1(b"".join(p.read_bytes() for p in sources)).hexdigest()


OPTIONS = ("-std=c++17", *(f"-I{folder}" for folder in FOLDERS), f"-DAMPKIT_SOURCES=0x{_digest()[:8]}")
C_NAMES: dict[DType, str] = {
    float64: "double",
    float32: "float",
    float16: "__half",
    bfloat16: "__nv_bfloat16",
    int64: "long long",
    int32: "int",
    int16: "short",
    int8: "signed char",
    uint8: "unsigned char",
    bool_: "bool",
}
STORED = frozenset({float32, float16, bfloat16})  # storage dtypes; arithmetic is float32
WORD_TYPES = {8: "unsigned long long", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}  # by size in bytes
NULL = np.uintp(0)  # None, as CuPy passes it, is the address 0xffffffff before CuPy 14 (cupy#9046)
STATIC = 1 << 10  # bytes: limit of static shared memory of a kernel that also has dynamic shared memory
SHARED = 47 << 10  # bytes of dynamic shared memory without opt-in: 48 KiB less STATIC; see `launch`
CUDA_ERRORS = ("CUDARuntimeError", "CUDADriverError")  # CuPy's, by name
MAX_ELEMENTS = 2**31 - 1  # of elements, or of blocks, in one launch


def options(source: str) -> tuple[str, ...]:
    """The compiler options of `<source>.cu`.

    Optimizers round each product before its sum: which products the compiler would contract differs between instances
    for wide and narrow accesses, and a resumed run, whose parameters may lie elsewhere in memory, goes on bit for bit.
    """
    return (*OPTIONS, "--fmad=false") if source.startswith("optim/") else OPTIONS


def code_of(source: str) -> str:
    """The code of `<source>.cu`, or `source` itself where that is code."""
    return source if "\n" in source else f'#include "{source}.cu"\n'


class Kernels:
    """The compiled entries; CuPy loads each on the devices it is launched on. xp: CuPy, or its emulation."""

    def __init__(self, xp: Any):
        self.xp = xp
        self._entries: dict[tuple[str, str], Callable[..., None]] = {}

    def entry(self, source: str, name: str) -> Callable[..., None]:
        """The function `name`, template arguments included, of `<source>.cu` or of the code `source`; compiled on first
        use."""
        found = self._entries.get((source, name))
        if found is None:
            module = self.xp.RawModule(code=code_of(source), options=options(source), name_expressions=(name,))
            try:
                found = self._entries[source, name] = module.get_function(name)
            except Exception as error:
                if type(error).__name__ not in CUDA_ERRORS:
                    raise
                cure = "see in nvidia-smi whether others have its memory, and what `ampkit doctor` says"
                said = str(error).partition("\n")[0]
                raise DeviceError(name, "a device that loads the kernel", said, cure) from error
        return found


@lru_cache(None, typed=True)  # typed: 1 and True differ
def typed(name: str, *arguments: DType | str | int | bool) -> str:
    """The template instance `name<...>`: dtypes and bools as in C++, numbers and text as they are."""
    return f"{name}<{', '.join(_template_argument(a) for a in arguments)}>"


def _template_argument(argument: DType | str | int | bool) -> str:
    if isinstance(argument, np.dtype):
        return C_NAMES[argument]
    return str(argument).lower() if isinstance(argument, bool) else str(argument)


def launch(source: str, name: str, grid: Any, block: int, *args: Any, shared: int = 0) -> None:
    """Launch an entry of `<source>.cu`, or of the code `source`, on the device of the first argument, an array, and on
    its current stream.

    grid: blocks, a number or a tuple. block: threads. args: arrays (their first element's address), None (null) and
    NumPy scalars, whose dtype must be the parameter's. shared: bytes of dynamic shared memory, at most the device's
    `shared`; an entry that needs more than SHARED has its limit raised before the first such launch.
    """
    backend: Any = backends.backend_of(args[0])
    if backend.recording is not None:
        backend.recording.keep(args)
        if queue.waiting:
            queue.flush(args)
    grid, gpus = grid if isinstance(grid, tuple) else (grid,), backend.gpus
    before = None if gpus is None else gpus.enter(name, args)
    try:  # CuPy loads a kernel on the current device, when it is asked for or when it is launched there first
        function = backend.kernels.entry(source, name)
        if shared > SHARED:
            backend.opt_in(function)
        function(grid, (block,), tuple([NULL if arg is None else arg for arg in args]), shared_mem=shared)
    finally:
        if before is not None:
            gpus.leave(before)


def cached_columns(array: Any, cols: int, each: int, reserved: int = 0) -> int:
    """How many columns of a row of `cols` fit into the shared memory of a block, at `each` bytes per column
    beside `reserved` bytes of other data.

    A multiple of 8, so that cached values are 16-byte aligned; at least `cols` if all fit. array: any on the device.
    """
    backend: Any = backends.backend_of(array)
    limit: int = (backend.shared - reserved) // (8 * each)
    return 8 * min(blocks_for(cols, 8), limit)


def drawn(backend: Any, seed: int, call: int) -> tuple[Any, Any, Any]:
    """The kernel arguments of a random draw: seed, call, and the device array to read both from at a launch, or None.

    During capture the array is the recording's, and call counts from the step's first draw.
    """
    recording = backend.recording
    if recording is None or recording.seed != seed:
        return np.uint64(seed), np.uint64(call), None
    return np.uint64(seed), np.uint64((call - recording.first) % 2**64), recording.draws


def blocks_for(count: int, block: int) -> int:
    """ceil(count / block), at least 1."""
    return max(1, -(-count // block))
