"""Matrix products of device arrays of any strides by cublasLt.

Operands whose strides BLAS supports are passed as they are (see matrices.py), others are copied first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.precision import get_float32_matmul_precision
from ampkit.base.dtypes import LOW, Array, DType, accumulator, bfloat16, float16, float32, float64
from ampkit.base.errors import UnsupportedError

from ..array_layout import cast
from ..launch.reduction import memory_order, reduced
from ..launch.row_alignment import (
    LEAST_DEPTH,
    LEAST_PRODUCTS,
    STEP,
    aligned_rows,
    copy_rows,
    empty_aligned,
    is_large,
    is_misaligned,
    is_row_major,
    parts,
)
from ..nvrtc import STORED
from .blas import Compute, Epilogue, Memory
from .cublaslt import TYPES
from .matrices import ArrayKey, Calls, plan_calls

AUX_ROWS = 8  # the leading dimension of aux is a multiple of this
MAX_ALIGNMENT = 256  # bytes: the alignment of CuPy's pools, and the largest that cublasLt distinguishes
_SUPPORTED = {(dtype, dtype) for dtype in TYPES} | {(float16, float32), (bfloat16, float32)}


def fits(a: Array, *others: Array | None) -> bool:
    """Whether `product` can multiply arrays of these dtypes, which must be equal; None entries are ignored."""
    if a.dtype not in TYPES or not all(b is None or b.dtype == a.dtype for b in others):
        return False
    gpu: Any = backends.backend_of(a)
    return (a.dtype != bfloat16 or gpu.multiplies_bfloat16) and not gpu.cublaslt.unavailable_reason()


def product(
    a: Array, b: Array, dtype: DType, buffer: Array | None = None, bias: Array | None = None, key: Any = None,
    **more: Any,
) -> Array:  # fmt: skip
    """a [..., M, K] @ b [..., K, N] + bias [N] in `dtype`, batch axes broadcast.

    Products are exact, summed in float32 and rounded once; see set_float32_matmul_precision for those of float32.
    buffer [..., M, N]: written to and returned if shape and dtype match. key: not used, nothing of b is cached.
    more: see `multiply`. Raises UnsupportedError if cublasLt has no algorithm, or not for the dtype of the bias.
    """
    batch = a.shape[:-2]
    if b.ndim > 2 and b.shape[:-2] != batch:
        batch = np.broadcast_shapes(batch, b.shape[:-2])
    backend, stored, shape = backends.backend_of(a), output_dtype(a.dtype, dtype), (*batch, a.shape[-2], b.shape[-1])
    if bias is not None and bias.dtype != stored:
        raise UnsupportedError
    use_buffer = buffer is not None and buffer.dtype == stored and buffer.shape == shape
    large = is_large(shape, stored) and math.prod(shape) * a.shape[-1] >= LEAST_PRODUCTS
    out = buffer if use_buffer else empty_aligned(a, shape, stored) if large else backend.empty(shape, stored)
    if _needs_parts(a, b, out) and "addend" not in more:
        out = _product_in_parts(a, b, out, bias, **more)
    elif not multiply(a, b, out, bias, **more):
        raise UnsupportedError
    return out if stored == dtype else backend.cast(out, dtype)


def aligned_operand(matrix: Array, depth: int) -> Array:
    """An operand of several large products, with aligned rows. depth: their size that is not one of the matrix."""
    large = matrix.dtype in LOW and depth >= LEAST_DEPTH and matrix.size * depth >= LEAST_PRODUCTS
    return aligned_rows(matrix) if large else matrix


def _needs_parts(a: Array, b: Array, out: Array) -> bool:
    """Whether a large 16-bit product has sizes or rows that keep it from fast kernels, and copies pay."""
    m, k, n = math.prod(out.shape[:-1]), a.shape[-1], out.shape[-1]
    if not (m | k | n) % STEP or a.dtype not in LOW or b.ndim > 2 or m * k * n < LEAST_PRODUCTS:
        return False
    return all(depth >= LEAST_DEPTH for matrix, depth in ((a, n), (b, m), (out, k)) if is_misaligned(matrix))


def _product_in_parts(
    a: Array, b: Array, out: Array, bias: Array | None = None, alpha: float = 1.0, row_sums: Array | None = None
) -> Array:
    """`product` in `out` or in an array of its own: a product per part of each contiguous axis, of aligned rows."""
    cut_k = a.shape[-1] % STEP != 0 and (is_row_major(a) or not is_row_major(b))
    if cut_k and row_sums is not None:
        raise UnsupportedError
    wide = cut_k and out.dtype in LOW  # the sum over two parts is rounded once
    result = out
    if wide or is_misaligned(out):
        result = empty_aligned(out, out.shape, accumulator(out.dtype) if wide else out.dtype)
    a, b, whole = aligned_rows(a), aligned_rows(b), slice(None)
    for rows in [whole] if is_row_major(a) else parts(a.shape[-2]):
        for columns in parts(b.shape[-1]):
            target, addend = result[..., rows, columns], None
            for k in parts(a.shape[-1]) if cut_k else [whole]:
                vectors = {} if bias is None or addend is not None else {"bias": cast(bias[columns], target.dtype)}
                vectors |= {} if row_sums is None or columns.start else {"row_sums": row_sums[rows]}
                if not multiply(a[..., rows, k], b[k, columns], target, addend=addend, alpha=alpha, **vectors):
                    raise UnsupportedError
                addend = target
    if wide:
        return backends.backend_of(out).cast(result, out.dtype)
    if result is not out:
        copy_rows(result, out)
    return out


def output_dtype(stored: DType, dtype: DType) -> DType:
    """The output dtype of a product of `stored` operands if `dtype` is requested: `dtype`, or the accumulator dtype."""
    return dtype if (stored, dtype) in _SUPPORTED else accumulator(stored)


def rounds_operands(dtype: DType) -> bool:
    """Whether products of `dtype` round their operands first: float32 if TF32 is allowed."""
    return _compute_type(dtype) is Compute.TF32


def multiply(
    a: Array, b: Array, out: Array, bias: Array | None = None, addend: Array | None = None, alpha: float = 1.0,
    beta: float = 1.0, row_sums: Array | None = None,
) -> bool:  # fmt: skip
    """Write alpha * a @ b + beta * addend + bias to `out`; False if cublasLt has no algorithm.

    addend, which broadcasts to out, and bias [N] have the dtype of out; None adds nothing. row_sums [M], of the dtype
    of out, receives the sums of the rows of `a`; only for matrices without a bias.
    """
    if not a.shape[-1] or not out.size:
        return row_sums is None and _multiply_empty(out, bias, addend, beta)
    if addend is not None and addend.shape != out.shape:
        out[...] = addend
        addend = out
    bias = bias if bias is None or bias.flags.c_contiguous else bias.copy()
    epilogue, vector = Epilogue.NONE if bias is None else Epilogue.BIAS, bias
    if row_sums is not None:
        epilogue, vector = Epilogue.BGRADB, row_sums  # of b, as operands are swapped
    c = out if addend is None else addend
    calls = _plan_calls(a, b, c, out, vector, epilogue)
    if calls.copies:
        if 3 in calls.copies:
            return False
        a, b, c = (_copied(x, out, calls) if i in calls.copies else x for i, x in enumerate((a, b, c)))
        return multiply(a, b, out, bias, None if addend is None else c, alpha, beta, row_sums)
    if _run(calls, (a, b, c, out), vector, alpha, 0.0 if addend is None else beta):
        return True
    if bias is None or addend is not None:
        return False
    out[...] = bias  # exact: same dtype
    return multiply(a, b, out, addend=out, alpha=alpha)


def with_gelu(a: Array, b: Array, out: Array, bias: Array | None, pre_gelu: Array) -> bool:
    """Write gelu(a @ b + bias), tanh approximation, to `out` [M, N], and the input of gelu to `pre_gelu` [M, N].

    All are matrices of one 16-bit dtype. Returns False if cublasLt has no algorithm.
    """
    return _run_with_aux(a, b, out, Epilogue.GELU_AUX if bias is None else Epilogue.GELU_AUX_BIAS, bias, pre_gelu)


def with_gelu_backward(a: Array, b: Array, out: Array, pre_gelu: Array) -> bool:
    """Write (a @ b) * gelu'(pre_gelu), the gradient of gelu's input, to `out` [M, N]; otherwise as `with_gelu`."""
    return _run_with_aux(a, b, out, Epilogue.DGELU, None, pre_gelu)


def column_sums(rows: Array, dtype: DType) -> Array:
    """[M, N] -> [N] in `dtype`: the gradient of a bias, in blocked float32 sums, rounded once.

    Uses the reduction kernel, with a block per 64 x 256 elements. A product with ones would have M = 1 and so occupy
    few multiprocessors.
    """
    acc = accumulator(rows.dtype)
    summed_in = dtype if dtype == rows.dtype or rows.dtype == float32 else acc
    dense = rows.dtype not in STORED or memory_order(rows) is not None
    try:
        result = reduced("Add", rows if dense else rows.copy(), 0, False, summed_in)
    except UnsupportedError:
        result, summed_in = rows.sum(0, dtype=acc), acc
    return result if summed_in == dtype else backends.backend_of(rows).cast(result, dtype)


# internals


def _cublaslt(array: Array) -> Any:
    gpu: Any = backends.backend_of(array)
    return gpu.cublaslt


def _multiply_empty(out: Array, bias: Array | None, addend: Array | None, beta: float) -> bool:
    """`multiply` where K or the output is empty; True."""
    if addend is not None:
        acc = accumulator(out.dtype)
        out[...] = addend.astype(acc) * acc.type(beta)
    else:
        out[...] = 0 if bias is None else bias
    return True


def _plan_calls(a: Array, b: Array, c: Array, d: Array, vector: Array | None, epilogue: Epilogue) -> Calls:
    key_of_d = _key(d)
    keys = _key(a), _key(b), key_of_d if c is d else _key(c), key_of_d
    return plan_calls(*keys, 0 if vector is None else _alignment(vector), epilogue, _compute_type(a.dtype))


def _key(array: Array) -> ArrayKey:
    return array.shape, array.strides, array.dtype, _alignment(array)


def _alignment(array: Array) -> int:
    """The alignment of the address in bytes, at most MAX_ALIGNMENT."""
    address: int = array.data.ptr
    return min(address & -address, MAX_ALIGNMENT) or MAX_ALIGNMENT


def _compute_type(dtype: DType) -> Compute:
    if dtype == float64:
        return Compute.FLOAT64
    tf32 = dtype == float32 and get_float32_matmul_precision() != "highest"
    return Compute.TF32 if tf32 else Compute.FLOAT32


def _copied(array: Array, out: Array, calls: Calls) -> Array:
    broadcast = np.broadcast_to(array, out.shape[:-2] + array.shape[-2:]) if calls.broadcast else array
    return broadcast.copy()


def _run_with_aux(a: Array, b: Array, out: Array, epilogue: Epilogue, bias: Array | None, aux: Array) -> bool:
    """Run a 16-bit product with an epilogue that reads or writes aux [M, N], row-major like out."""
    if out.dtype not in LOW or not a.size or not out.size or out.shape[1] % AUX_ROWS:
        return False
    calls = _plan_calls(a, b, out, out, bias, epilogue)
    if calls.product is None:
        return False
    alignment = calls.product.alignment._replace(aux=_alignment(aux))
    product = calls.product._replace(alignment=alignment, aux_leading=out.shape[1])
    return _run(calls._replace(product=product), (a, b, out, out), bias, aux=aux)


def _run(
    calls: Calls, arrays: tuple[Array, ...], vector: Array | None, alpha: float = 1.0, beta: float = 0.0,
    aux: Array | None = None,
) -> bool:  # fmt: skip
    """Run all calls on a, b, c and d; vector: the bias of the epilogue. False if cublasLt has no algorithm."""
    if calls.product is None:
        return False
    cublaslt, device = _cublaslt(arrays[3]), arrays[3].data.device_id
    a, b, c, d, *epilogue = [0 if array is None else array.data.ptr for array in (*arrays, vector, aux)]
    for i, j, k, m in calls.offsets:  # column-major: operands swapped
        if not cublaslt.run(device, calls.product, Memory(b + j, a + i, c + k, d + m, *epilogue), alpha, beta):
            return False
    return True
