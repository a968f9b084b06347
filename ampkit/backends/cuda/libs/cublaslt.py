"""ctypes bindings of cublasLt: matrix products, planned once per description, run on CuPy's current stream.

`gemm` describes a product of arrays as a `Product`. `CublasLt.run` asks the heuristic for an algorithm the first time
it sees a description and caches it; later calls are one call of the library. It does not synchronize and allocates its
workspace through CuPy, so a CUDA graph can capture it.

The library is searched in NVIDIA's wheels, then by `cuda.pathfinder`, then on the system. `unavailable_reason` returns
in one line why it cannot be used, and the references run instead.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from ampkit.base.dtypes import (
    LOW,
    bfloat16,
    float4_e2m1fn_x2,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int32,
)

from .. import install
from .blas import Compute, Matrix, Memory, Product, ScaleMode

WORKSPACE = 32 << 20  # bytes: NVIDIA's recommendation for Hopper; older devices use less
PLANS = 4096  # descriptions whose plans are cached
TYPES = {float32: 0, float64: 1, float16: 2, bfloat16: 14}  # cudaDataType
NUMBERS = TYPES | {int8: 3, int32: 10, float8_e4m3fn: 28, float8_e5m2: 29, float4_e2m1fn_x2: 33}

_STATUS = {  # cublasStatus_t
    1: "not initialized", 3: "out of memory", 7: "invalid value", 8: "wrong architecture", 13: "execution failed",
    14: "internal error", 15: "not supported",
}  # fmt: skip
_NO_MEMORY = 3
_UNSUPPORTED = (7, 15)  # what the heuristic returns for a description that no algorithm supports

# cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t
TRANS_A, TRANS_B, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LEADING, BIAS_TYPE = 3, 4, 7, 8, 11, 12, 26
A_SCALES, B_SCALES, FAST_SUMS, A_SCALE_MODE, B_SCALE_MODE = 17, 18, 25, 31, 32
BATCH_COUNT, BATCH_STRIDE = 5, 6
MAX_WORKSPACE, REDUCTIONS, ALIGNMENTS = 1, 3, (5, 6, 7, 8)
IN_FLOAT32, ANY_REDUCTION = 2, 7  # cublasLtReductionScheme_t: COMPUTE_TYPE, MASK


class CublasLtError(RuntimeError):
    """A call of cublasLt failed; the message names the function and the status, `status` is the cublasStatus_t."""

    def __init__(self, what: str, status: int):
        super().__init__(f"cublasLt{what}: {_STATUS.get(status, status)}")
        self.status = status


class CublasLtMemoryError(CublasLtError, MemoryError):
    """cublasLt could not allocate memory."""


# loading the library


@cache
def library(major: int) -> tuple[Any, str]:
    """The library for CUDA `major`, CuPy's, and "", or None and one line that says why it is missing.

    One of another CUDA may load, and then fails at the first product: the driver is too old for it.
    """
    reason = f"libcublasLt.so.{major} was not found: {install.cure_for(major)}"
    for path in _library_paths(major):
        try:
            return _declare(ctypes.CDLL(path)), ""
        except (OSError, AttributeError) as error:
            if Path(path).exists():
                reason = f"cublasLt could not be loaded: {error}"
    return None, reason


def _library_paths(major: int) -> Iterator[str]:
    """The paths to try for CUDA `major`, in order: wheels have a folder per CUDA, from 13 on, or per library."""
    spec, name = importlib.util.find_spec("nvidia"), f"libcublasLt.so.{major}"
    for root in (spec and spec.submodule_search_locations) or ():
        for folder in (f"cu{major}", "cublas"):
            yield from map(str, sorted(Path(root, folder, "lib").glob(f"{name}*"), reverse=True))
    with suppress(ImportError, RuntimeError):
        found = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cublasLt").abs_path
        if name in found:
            yield found
    yield name


def _declare(lib: Any) -> Any:
    """Set the argument types of the functions that are called, and return `lib`."""
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    lib.cublasLtMatmul.argtypes = [pointer] * 14 + [size, pointer]
    lib.cublasLtMatrixLayoutCreate.argtypes = [pointer, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64]
    lib.cublasLtMatmulDescCreate.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
    lib.cublasLtMatmulPreferenceCreate.argtypes = [pointer]
    for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference"):
        getattr(lib, f"cublasLt{kind}Destroy").argtypes = [pointer]
        getattr(lib, f"cublasLt{kind}SetAttribute").argtypes = [pointer, ctypes.c_int, pointer, size]
    lib.cublasLtMatmulAlgoGetHeuristic.argtypes = [pointer] * 7 + [ctypes.c_int, pointer, pointer]
    lib.cublasLtGetVersion.restype = size
    return lib


# descriptors


class Descriptor:
    """A cublasLt descriptor of type `kind`, destroyed with this object."""

    def __init__(self, lib: Any, kind: str, *arguments: int):
        self._lib, self.kind, self.handle = lib, kind, ctypes.c_void_p()
        _call(lib, f"{kind}Create", ctypes.byref(self.handle), *arguments)

    def set(self, attribute: int, value: int, c_type: Any = ctypes.c_int32) -> None:
        """Set an attribute of C type `c_type`."""
        data = c_type(value)
        _call(self._lib, f"{self.kind}SetAttribute", self.handle, attribute, ctypes.byref(data), ctypes.sizeof(data))

    def __del__(self) -> None:
        if self.handle and not sys.is_finalizing():
            getattr(self._lib, f"cublasLt{self.kind}Destroy")(self.handle)


def _call(lib: Any, name: str, *arguments: Any) -> None:
    status = getattr(lib, f"cublasLt{name}")(*arguments)
    if status:
        raise (CublasLtMemoryError if status == _NO_MEMORY else CublasLtError)(name, status)


def operation(lib: Any, product: Product) -> Descriptor:
    """The operation descriptor, without the addresses of bias and aux."""
    scale = NUMBERS[{Compute.FLOAT64: float64, Compute.INT32: int32}.get(product.compute, float32)]
    descriptor = Descriptor(lib, "MatmulDesc", product.compute, scale)
    descriptor.set(TRANS_A, product.transposed[0])
    descriptor.set(TRANS_B, product.transposed[1])
    descriptor.set(EPILOGUE, product.epilogue)
    if product.epilogue.has_bias:
        descriptor.set(BIAS_TYPE, TYPES[product.d.dtype])
    if product.epilogue.has_aux:
        descriptor.set(AUX_LEADING, product.aux_leading, ctypes.c_int64)
    if product.scales is not None:
        descriptor.set(FAST_SUMS, 0, ctypes.c_int8)  # partial sums are added in float32
        for attribute, mode in zip((A_SCALE_MODE, B_SCALE_MODE), product.scales, strict=True):
            if mode is not ScaleMode.SCALAR:  # which is the default, and all that cublasLt before 12.8 has
                descriptor.set(attribute, mode)
    return descriptor


def layout(lib: Any, matrix: Matrix) -> Descriptor:
    """The layout descriptor of an operand."""
    descriptor = Descriptor(lib, "MatrixLayout", NUMBERS[matrix.dtype], matrix.rows, matrix.columns, matrix.leading)
    if matrix.batch > 1:
        descriptor.set(BATCH_COUNT, matrix.batch)
        descriptor.set(BATCH_STRIDE, matrix.stride, ctypes.c_int64)
    return descriptor


def preference(lib: Any, product: Product) -> Descriptor:
    """The search preference: the workspace limit, the alignments, and float32 split-K sums of 16-bit results."""
    descriptor = Descriptor(lib, "MatmulPreference")
    descriptor.set(MAX_WORKSPACE, WORKSPACE, ctypes.c_size_t)
    descriptor.set(REDUCTIONS, IN_FLOAT32 if product.d.dtype in LOW else ANY_REDUCTION)
    for attribute, nbytes in zip(ALIGNMENTS, product.alignment[:4], strict=True):
        descriptor.set(attribute, nbytes)
    return descriptor


# plans and execution


class _HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class ProductPlan:
    """The descriptors of a product, and the heuristic's result: the algorithm first, and its workspace in bytes."""

    def __init__(self, lib: Any, product: Product):
        self.operation, self.layouts = operation(lib, product), [layout(lib, matrix) for matrix in product[:4]]
        self.descriptors = [each.handle.value for each in (self.operation, *self.layouts)]
        self.epilogue, self.heuristic_result = product.epilogue, _HeuristicResult()
        self.scaled = product.scales is not None
        self.one, self.zero = _scalar(product.compute, 1.0), _scalar(product.compute, 0.0)

    @property
    def workspace(self) -> int:
        return int(self.heuristic_result.workspace)

    def find_algorithm(self, lib: Any, handle: ctypes.c_void_p, product: Product) -> int:
        """Ask the heuristic for the fastest algorithm; returns the cublasStatus_t, 0 if there is one."""
        self.set_addresses(product.alignment)  # the heuristic reads their alignment
        search_preference, count = preference(lib, product), ctypes.c_int()
        results = ctypes.byref(self.heuristic_result), ctypes.byref(count)
        status: int = lib.cublasLtMatmulAlgoGetHeuristic(
            handle, *self.descriptors, search_preference.handle, 1, *results
        )
        return status or self.heuristic_result.state or (0 if count.value else _UNSUPPORTED[-1])

    def set_addresses(self, memory: Memory) -> None:
        """Set the addresses of bias, aux and scales, which are attributes of the operation descriptor."""
        if self.epilogue.has_bias:
            self.operation.set(BIAS_POINTER, memory.bias, ctypes.c_void_p)
        if self.epilogue.has_aux:
            self.operation.set(AUX_POINTER, memory.aux, ctypes.c_void_p)
        if self.scaled:
            self.operation.set(A_SCALES, memory.a_scales, ctypes.c_void_p)
            self.operation.set(B_SCALES, memory.b_scales, ctypes.c_void_p)


class CublasLt:
    """Runs products on the devices of `xp`, CuPy. refused: the status per description without an algorithm."""

    def __init__(self, xp: Any):
        self.xp = xp
        self.refused: dict[Product, int] = {}
        self._plan: Callable[[int, Product], ProductPlan | None] = lru_cache(PLANS)(self._new_plan)
        self._handles: dict[int, ctypes.c_void_p] = {}
        self._lock = Lock()  # a plan holds the addresses of bias, aux and scales until the call has read them

    def unavailable_reason(self) -> str:
        """Why cublasLt cannot be used, in one line; "" if it can."""
        return self._library()[1]

    @cached_property
    def version(self) -> int:
        """10000 * major + 100 * minor + patch; 0 where the library is missing."""
        lib = self._library()[0]
        return 0 if lib is None else int(lib.cublasLtGetVersion())

    def _library(self) -> tuple[Any, str]:
        return library(self.xp.cuda.runtime.runtimeGetVersion() // 1000)

    def run(self, device: int, product: Product, memory: Memory, alpha: float = 1.0, beta: float = 0.0) -> bool:
        """Enqueue `product` on the device's current stream; False if no algorithm supports it. Raises CublasLtError."""
        if self.xp.cuda.runtime.getDevice() != device:
            with self.xp.cuda.Device(device):
                return self.run(device, product, memory, alpha, beta)
        with self._lock:
            plan = self._plan(device, product)
            if plan is not None:
                plan.set_addresses(memory)
                alpha_pointer = plan.one if alpha == 1 else _scalar(product.compute, alpha)
                beta_pointer = _scalar(product.compute, beta) if beta else plan.zero
                self._enqueue(device, plan, memory, alpha_pointer, beta_pointer)
        return plan is not None

    def _enqueue(self, device: int, plan: ProductPlan, memory: Memory, alpha: Any, beta: Any) -> None:
        """Call cublasLtMatmul; alpha, beta: pointers. The workspace is reused in stream order."""
        stream, nbytes = self.xp.cuda.get_current_stream().ptr, plan.workspace
        operation, *layouts = plan.descriptors
        a, b, c, d = zip(memory, layouts, strict=False)
        workspace = self.xp.cuda.alloc(nbytes) if nbytes else None
        after = ctypes.addressof(plan.heuristic_result), 0 if workspace is None else workspace.ptr, nbytes, stream
        status = self._library()[0].cublasLtMatmul(
            self._handles[device], operation, alpha, *a, *b, beta, *c, *d, *after
        )
        if status:
            raise CublasLtError("Matmul", status)

    def _new_plan(self, device: int, product: Product) -> ProductPlan | None:
        lib = self._library()[0]
        plan = ProductPlan(lib, product)
        status = plan.find_algorithm(lib, self._handle(device), product)
        if not status:
            return plan
        if status not in _UNSUPPORTED:
            raise CublasLtError("MatmulAlgoGetHeuristic", status)
        self.refused[product] = status
        return None

    def _handle(self, device: int) -> ctypes.c_void_p:
        if device not in self._handles:
            handle = ctypes.c_void_p()
            _call(self._library()[0], "Create", ctypes.byref(handle))
            self._handles[device] = handle
        return self._handles[device]


@lru_cache(256)
def _scalar(compute: Compute, value: float) -> Any:
    """A pointer to alpha or beta in the scale type: double for FLOAT64, int32 for INT32, else float."""
    if compute is Compute.INT32:
        return ctypes.cast(ctypes.pointer(ctypes.c_int32(int(value))), ctypes.c_void_p)
    scalar = ctypes.c_double(value) if compute is Compute.FLOAT64 else ctypes.c_float(value)
    return ctypes.cast(ctypes.pointer(scalar), ctypes.c_void_p)
