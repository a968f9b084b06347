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

AUX_ROWS = 8  # the leading dimension of aux is a multiple of this
ALIGNED = 256  # bytes: the alignment of CuPy's pools, and the largest that a library distinguishes
_OUTPUTS = {(dtype, dtype) for dtype in TYPES} | {(float16, float32), (bfloat16, float32)}


def fits(a: Array, *others: Array | None) -> bool:
    """Whether `product` can multiply arrays of these dtypes, which must be equal; None entries are ignored."""
    dtype = a.dtype
    return dtype in TYPES and all(b is None or b.dtype == dtype for b in others) and not _cublaslt(a).trouble()


def product(a: Array, b: Array, dtype: DType, buffer: Array | None = None, **more: Any) -> Array | None:
    """a [..., M, K] @ b [..., K, N] in `dtype`, batch axes broadcast; None if cublasLt has no algorithm.

    Products are exact, summed in float32 and rounded once; see set_float32_matmul_precision for those of float32.
    buffer [..., M, N]: written to and returned if shape and dtype match. more: see `multiply`.
    """
    lead = a.shape[:-2] if a.shape[:-2] == b.shape[:-2] or b.ndim == 2 else _broadcast(a.shape[:-2], b.shape[:-2])
    backend, stored = backends.backend_of(a), answer(a.dtype, dtype)
    shape = (*lead, a.shape[-2], b.shape[-1])
    fit = buffer is not None and buffer.dtype == stored and buffer.shape == shape
    out = buffer if fit else backend.empty(shape, stored)
    if not multiply(a, b, out, **more):
        return None
    return out if stored == dtype else backend.cast(out, dtype)


def answer(stored: DType, dtype: DType) -> DType:
    """The output dtype of a product of `stored` operands if `dtype` is requested: `dtype`, or the accumulator dtype."""
    return dtype if (stored, dtype) in _OUTPUTS else accumulator(stored)


def rounds(dtype: DType) -> bool:
    """Whether products of `dtype` round their operands first: float32 if TF32 is allowed."""
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
    """Write alpha * a @ b + beta * addend + bias to `out`; False if cublasLt has no algorithm.

    addend, which broadcasts to out, and bias [N] have the dtype of out; None adds nothing. sums [M], of the dtype of
    out, receives the row sums of a; only for matrices without a bias.
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
    out[...] = bias  # exact: same dtype
    return multiply(a, b, out, addend=out, alpha=alpha)


def with_gelu(a: Array, b: Array, out: Array, bias: Array | None, before: Array) -> bool:
    """Write gelu(a @ b + bias), tanh approximation, to `out` [M, N], and the input of gelu to `before` [M, N].

    All are matrices of one 16-bit dtype. Returns False if cublasLt has no algorithm.
    """
    return _with_aux(a, b, out, Epilogue.GELU_AUX if bias is None else Epilogue.GELU_AUX_BIAS, bias, before)


def with_gelu_slope(a: Array, b: Array, out: Array, before: Array) -> bool:
    """Write (a @ b) * gelu'(before), the gradient of gelu's input, to `out` [M, N]; otherwise as `with_gelu`."""
    return _with_aux(a, b, out, Epilogue.DGELU, None, before)


def column_sums(rows: Array, dtype: DType) -> Array:
    """[M, N] -> [N] in `dtype`: the gradient of a bias, in blocked float32 sums, rounded once.

    Uses the reduction kernel, with a block per 64 x 256 elements. A product with ones would have M = 1 and so occupy
    few multiprocessors.
    """
    acc = accumulator(rows.dtype)
    summed_in = dtype if dtype == rows.dtype or rows.dtype == float32 else acc
    result = reduced("Add", rows, 0, False, summed_in)
    if result is NotImplemented and rows.dtype in STORED:  # not contiguous in any order of axes
        result = reduced("Add", rows.copy(), 0, False, summed_in)
    if result is NotImplemented:
        result, summed_in = rows.sum(0, dtype=acc), acc
    return result if summed_in == dtype else backends.backend_of(rows).cast(result, dtype)


def folded(array: Array) -> Array:
    """[..., N] as [rows, N]."""
    return array if array.ndim == 2 else array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


# internals


def _cublaslt(array: Array) -> Any:
    return backends.backend_of(array).cublaslt  # type: ignore[attr-defined]  # of the CUDA backend


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return np.broadcast_shapes(a, b)


def _without_product(out: Array, bias: Array | None, addend: Array | None, beta: float, sums: Array | None) -> bool:
    """`multiply` where K or the output is empty."""
    if sums is not None:
        return False
    if addend is not None:
        acc = accumulator(out.dtype)
        out[...] = addend.astype(acc) * acc.type(beta)
    else:
        out[...] = 0 if bias is None else bias
    return True


def _epilogue(bias: Array | None, sums: Array | None) -> Epilogue:
    return Epilogue.BGRADB if sums is not None else Epilogue.NONE if bias is None else Epilogue.BIAS


def _calls(a: Array, b: Array, c: Array, d: Array, vector: Array | None, epilogue: Epilogue) -> Calls:
    output = _key(d)
    keys = _key(a), _key(b), output if c is d else _key(c), output
    return arranged(*keys, 0 if vector is None else _alignment(vector), epilogue, _compute(a.dtype))


def _key(array: Array) -> tuple[Any, ...]:
    return array.shape, array.strides, array.dtype, _alignment(array)


def _alignment(array: Array) -> int:
    """The alignment of the address in bytes, at most ALIGNED."""
    address: int = array.data.ptr
    return min(address & -address, ALIGNED) or ALIGNED


def _compute(dtype: DType) -> Compute:
    if dtype == float64:
        return Compute.FLOAT64
    fast = dtype == float32 and get_float32_matmul_precision() != "highest"
    return Compute.TF32 if fast else Compute.FLOAT32


def _copied(array: Array, out: Array, calls: Calls) -> Array:
    broadcast = np.broadcast_to(array, out.shape[:-2] + array.shape[-2:]) if calls.spread else array
    return broadcast.copy()


def _with_aux(a: Array, b: Array, out: Array, epilogue: Epilogue, bias: Array | None, aux: Array) -> bool:
    """Run a 16-bit product with an epilogue that reads or writes aux [M, N], row-major like out."""
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
    """Run all calls; vector: the bias of the epilogue. False if cublasLt has no algorithm."""
    if calls.product is None:
        return False
    cublaslt, device = _cublaslt(arrays[3]), arrays[3].data.device_id
    a, b, c, d = [array.data.ptr for array in arrays]
    extra = 0 if vector is None else vector.data.ptr
    for x, y, z, w in calls.offsets:  # column-major: operands swapped
        if not cublaslt.run(device, calls.product, Memory(b + y, a + x, c + z, d + w, extra), alpha, beta):
            return False
    return True
