"""Matrix products of device arrays of any strides by cublasLt.

Operands whose strides BLAS supports are passed as they are (see matrices.py), others are copied first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.precision import get_float32_matmul_precision
from ampkit.base.dtypes import LOW, DType, accumulator, bfloat16, float16, float32, float64

from ..launch.reduction import reduced
from ..nvrtc import STORED
from .blas import Compute, Epilogue, Memory
from .cublaslt import TYPES
from .matrices import Calls, arranged

Array = Any  # a CuPy array

AUX_ROWS = 8  # what cublasLt wants the leading dimension of a matrix beside the result to be a multiple of
ALIGNED = 256  # bytes; what CuPy's pools give at least, and the most that a library asks for
_ANSWERS = {(dtype, dtype) for dtype in TYPES} | {(float16, float32), (bfloat16, float32)}


def fits(a: Array, *others: Array | None) -> bool:
    """Whether `product` can multiply arrays of these dtypes; a None is not asked."""
    dtype = a.dtype
    return dtype in TYPES and all(b is None or b.dtype == dtype for b in others) and not _cublaslt(a).trouble()


def product(a: Array, b: Array, dtype: DType, home: Array | None = None, **more: Any) -> Array | None:
    """a [..., M, K] times b [..., K, N], whose leading axes broadcast, in `dtype`; None where nothing can do it.

    Products are exact, summed in float32 and rounded once; see set_float32_matmul_precision for those of float32. home
    [..., M, N]: where to leave the result, if it is of the dtype. more: see `multiply`.
    """
    lead = a.shape[:-2] if a.shape[:-2] == b.shape[:-2] or b.ndim == 2 else _broadcast(a.shape[:-2], b.shape[:-2])
    backend, stored = backends.backend_of(a), answer(a.dtype, dtype)
    shape = (*lead, a.shape[-2], b.shape[-1])
    fit = home is not None and home.dtype == stored and home.shape == shape
    out = home if fit else backend.empty(shape, stored)
    if not multiply(a, b, out, **more):
        return None
    return out if stored == dtype else backend.cast(out, dtype)


def answer(stored: DType, dtype: DType) -> DType:
    """What a product of arrays stored in `stored` is written in, if `dtype` is wanted."""
    return dtype if (stored, dtype) in _ANSWERS else accumulator(stored)


def rounds(dtype: DType) -> bool:
    """Whether products of `dtype` round their operands first: those of float32 where TF32 is allowed."""
    return _compute(dtype) is Compute.TF32


def multiply(
    a: Array,
    b: Array,
    out: Array,
    bias: Array | None = None,
    addend: Array | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    sums: Array | None = None,
) -> bool:
    """Write alpha * a @ b + beta * addend + bias to `out`; False where nothing can do it.

    addend, which broadcasts to out, and bias [N] are stored as out is, and None adds nothing. sums [M], stored as out
    is: where to leave the sums of a's rows, for matrices without a bias.
    """
    if not a.shape[-1] or not out.size:
        return _without_product(out, bias, addend, beta, sums)
    if addend is not None and addend.shape != out.shape:
        out[...] = addend
        addend = out
    bias = bias if bias is None or bias.flags.c_contiguous else bias.copy()
    vector = bias if sums is None else sums
    c = out if addend is None else addend
    calls = _calls(a, b, c, out, vector, _epilogue(bias, sums))
    if calls.copies:
        if 3 in calls.copies:
            return False
        a, b, c = (_copied(x, out, calls) if i in calls.copies else x for i, x in enumerate((a, b, c)))
        return multiply(a, b, out, bias, None if addend is None else c, alpha, beta, sums)
    if _run(calls, (a, b, c, out), vector, alpha, 0.0 if addend is None else beta):
        return True
    if bias is None or addend is not None:
        return False
    out[...] = bias  # which has the same dtype, so that this rounds nothing
    return multiply(a, b, out, addend=out, alpha=alpha)


def with_gelu(a: Array, b: Array, out: Array, bias: Array | None, before: Array) -> bool:
    """Write gelu(a @ b + bias), by its tanh formula, to `out` [M, N], and what gelu is given to `before` [M, N].

    All are matrices of one 16-bit dtype. False where cublasLt has no way to do it.
    """
    return _beside(a, b, out, Epilogue.GELU_AUX if bias is None else Epilogue.GELU_AUX_BIAS, bias, before)


def with_gelu_slope(a: Array, b: Array, out: Array, before: Array) -> bool:
    """Write a @ b times the slope of gelu at `before` to `out` [M, N]; else as `with_gelu`."""
    return _beside(a, b, out, Epilogue.DGELU, None, before)


def column_sums(rows: Array, dtype: DType) -> Array:
    """[M, N] -> [N] in `dtype`: the gradient of a bias, in blocked sums in float32, rounded once.

    By a reduction, which has a block for each 64 x 256 elements. A product with ones would have M = 1: a few tiles of
    the library's kernel, on as few of the GPU's multiprocessors.
    """
    wide = accumulator(rows.dtype)
    answered = dtype if dtype == rows.dtype or rows.dtype == float32 else wide
    found = reduced("Add", rows, 0, False, answered)
    if found is NotImplemented and rows.dtype in STORED:  # values that do not fill a piece of memory
        found = reduced("Add", rows.copy(), 0, False, answered)
    if found is NotImplemented:
        found, answered = rows.sum(0, dtype=wide), wide
    return found if answered == dtype else backends.backend_of(rows).cast(found, dtype)


def folded(array: Array) -> Array:
    """[..., N] as [rows, N]."""
    return array if array.ndim == 2 else array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


# pieces


def _cublaslt(array: Array) -> Any:
    return backends.backend_of(array).cublaslt  # type: ignore[attr-defined]  # of the CUDA backend


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return np.broadcast_shapes(a, b)


def _without_product(out: Array, bias: Array | None, addend: Array | None, beta: float, sums: Array | None) -> bool:
    # What is left where there is nothing to multiply.
    if sums is not None:
        return False
    if addend is not None:
        wide = accumulator(out.dtype)
        out[...] = addend.astype(wide) * wide.type(beta)
    else:
        out[...] = 0 if bias is None else bias
    return True


def _epilogue(bias: Array | None, sums: Array | None) -> Epilogue:
    return Epilogue.BGRADB if sums is not None else Epilogue.NONE if bias is None else Epilogue.BIAS


def _calls(a: Array, b: Array, c: Array, d: Array, vector: Array | None, epilogue: Epilogue) -> Calls:
    to = _sign(d)
    signs = _sign(a), _sign(b), to if c is d else _sign(c), to
    return arranged(*signs, 0 if vector is None else _alignment(vector), epilogue, _compute(a.dtype))


def _sign(array: Array) -> tuple[Any, ...]:
    return array.shape, array.strides, array.dtype, _alignment(array)


def _alignment(array: Array) -> int:
    address: int = array.data.ptr
    return min(address & -address, ALIGNED) or ALIGNED


def _compute(dtype: DType) -> Compute:
    if dtype == float64:
        return Compute.FLOAT64
    fast = dtype == float32 and get_float32_matmul_precision() != "highest"
    return Compute.TF32 if fast else Compute.FLOAT32


def _copied(array: Array, out: Array, calls: Calls) -> Array:
    spread = np.broadcast_to(array, out.shape[:-2] + array.shape[-2:]) if calls.spread else array
    return spread.copy()


def _beside(a: Array, b: Array, out: Array, epilogue: Epilogue, bias: Array | None, aux: Array) -> bool:
    # aux: what the epilogue reads or writes beside the result, in the same order.
    if out.dtype not in LOW or not a.size or not out.size or out.shape[1] % AUX_ROWS:
        return False
    calls = _calls(a, b, out, out, bias, epilogue)
    if calls.product is None:
        return False
    alignment = calls.product.alignment._replace(aux=_alignment(aux))
    product = calls.product._replace(alignment=alignment, leading=out.shape[1])
    to, vector = out.data.ptr, 0 if bias is None else bias.data.ptr
    memory = Memory(b.data.ptr, a.data.ptr, to, to, vector, aux.data.ptr)
    ran: bool = _cublaslt(out).run(out.data.device_id, product, memory)
    return ran


def _run(calls: Calls, arrays: tuple[Array, ...], vector: Array | None, alpha: float, beta: float) -> bool:
    if calls.product is None:
        return False
    cublaslt, device = _cublaslt(arrays[3]), arrays[3].data.device_id
    a, b, c, d = [array.data.ptr for array in arrays]
    extra = 0 if vector is None else vector.data.ptr
    for x, y, z, w in calls.offsets:  # to BLAS the second operand comes first
        if not cublaslt.run(device, calls.product, Memory(b + y, a + x, c + z, d + w, extra), alpha, beta):
            return False
    return True
