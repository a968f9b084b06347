"""Inner, cross, Kronecker and tensor products, addmv, addr and addbmm, and bilinear forms.

Most are one `addmm`, `matmul` or `einsum` in another shape: exact products, sums in float32, one rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from ampkit.base.dtypes import bool_
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.arguments import is_whole
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import broadcast_shape, check_addend, check_factor, check_ndim, normalize_axes, normalize_axis
from ..pointwise.arithmetic import mul
from ..pointwise.comparison import logical_and, logical_or
from ..shape.view import broadcast_to, movedim, permute, reshape, squeeze, unsqueeze
from .einsum import einsum
from .matmul import addmm, as_matrix, tensordot_

__all__ = ["addbmm", "addmv", "addr", "bilinear", "cross", "inner", "kron", "linalg_vecdot", "tensordot", "vecdot"]


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec), rounded once; beta=0 leaves input out, NaN and all.

    input broadcastable to [M], mat [M, K], vec [K] -> [M]. Raises ShapeError for shapes that do not fit.
    """
    check_factor("addmv", "vec", vec.array, "mat", mat.array, "[{1}]", "[M, K]")
    check_addend("addmv", input.array, mat.shape[:1])
    return squeeze(addmm(unsqueeze(input, -1), mat, unsqueeze(vec, 1), beta=beta, alpha=alpha), 1)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * the outer product of two vectors, rounded once; beta=0 leaves input out.

    input broadcastable to [M, N], vec1 [M], vec2 [N] -> [M, N]. For bool tensors sum is "or" and product
    is "and". Raises ShapeError for shapes that do not fit.
    """
    check_ndim("addr", "vec1", vec1.array, "[M]")
    check_ndim("addr", "vec2", vec2.array, "[N]")
    check_addend("addr", input.array, (*vec1.shape, *vec2.shape))
    column, row = unsqueeze(vec1, 1), unsqueeze(vec2, 0)
    if {input.array.dtype, vec1.array.dtype, vec2.array.dtype} == {bool_}:
        both = logical_and(logical_and(column, row), Tensor(np.full_like(row.array, bool(alpha))))
        return logical_or(logical_and(input, Tensor(np.full_like(row.array, bool(beta)))), both)
    return addmm(input, column, row, beta=beta, alpha=alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * the sum over the batch of batch1 @ batch2, rounded once; beta=0 leaves input out.

    input broadcastable to [M, N], batch1 [B, M, K], batch2 [B, K, N] -> [M, N]. One product over B and K together.
    Raises ShapeError for shapes that do not fit.
    """
    check_factor("addbmm", "batch2", batch2.array, "batch1", batch1.array, "[{0}, {2}, N]", "[B, M, K]")
    batch, rows, inner = batch1.shape
    columns = batch2.shape[2]
    check_addend("addbmm", input.array, (rows, columns))
    left = reshape(permute(batch1, (1, 0, 2)), (rows, batch * inner))
    return addmm(input, left, reshape(batch2, (batch * inner, columns)), beta=beta, alpha=alpha)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The inner products of vectors along `dim`: x, y [.., n, ..], broadcast -> [..]. Precision as `matmul`.

    Raises ShapeError for shapes that do not broadcast, RangeError for an axis that is not there.
    """
    shape = broadcast_shape("vecdot", x.shape, y.shape)
    x, y = (t if shape else unsqueeze(t, 0) for t in (x, y))
    shape = shape or (1,)
    at = normalize_axis("vecdot", dim, len(shape))
    x, y = (movedim(broadcast_to(t, shape), at, -1) for t in (x, y))
    return einsum("...i,...i->...", x, y)


linalg_vecdot = vecdot


@op(cast=Cast.WIDEST)
def cross(input: Array, other: Array, dim=None):
    """The cross product of vectors of 3 along `dim`, by default the first axis of length 3; broadcast, rounded once.

    Raises ShapeError if there is no such axis.
    """
    at = _cross_axis(input, other, dim)
    return _cross(input, other, at), Saved(input=input, other=other, at=at)


def _cross_axis(a: Any, b: Any, dim: int | None) -> int:
    # A negative axis, which stays valid when leading axes are broadcast.
    rank = max(a.ndim, b.ndim)
    if dim is not None:
        return normalize_axis("cross", dim, rank) - rank
    longest = a if a.ndim >= b.ndim else b
    return longest.shape.index(3) - rank


def _cross(a: Any, b: Any, at: int) -> Any:
    def rolled(x: Any, by: int) -> Any:
        return np.roll(x, -by, at)

    return rolled(a, 1) * rolled(b, 2) - rolled(a, 2) * rolled(b, 1)


@cross.check
def cross_check(input, other, dim):
    found = f"{tuple(input.shape)} and {tuple(other.shape)}"
    longest = input if input.ndim >= other.ndim else other
    if not longest.ndim or (dim is None and 3 not in longest.shape):
        raise ShapeError("cross", "an axis of length 3", found)
    at = _cross_axis(input, other, dim)
    if any(-at > x.ndim or x.shape[at] != 3 for x in (input, other)):
        raise ShapeError("cross", "an axis of length 3 in both", found)


@cross.backward(input="other", other="input")
def cross_backward(dy, saved, needs, dim):
    da = _cross(saved.other, dy, saved.at) if needs[0] is not None else None
    return da, _cross(dy, saved.input, saved.at) if needs[1] is not None else None


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Inner products over the last axes: [..., n], [*S, n] -> [..., *S]; with a 0-d tensor, elementwise products.

    Raises ShapeError if the last axes differ.
    """
    if not input.ndim or not other.ndim:
        return input * other
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError("inner", "last axes of equal lengths", f"{tuple(input.shape)} and {tuple(other.shape)}")
    return tensordot(input, other, ([-1], [-1]))


def tensordot(a: Tensor, b: Tensor, dims: int | Sequence[Any] = 2) -> Tensor:
    """Contract pairs of axes: the last `dims` axes of a with the first of b, or two lists of axes.

    The result has the other axes of a, then those of b. An axis of length 1 is broadcast. One matrix product in the
    wider dtype of the two, summed in float32 and rounded once.
    Raises ShapeError if the axes of a pair differ in length, ArgumentError for a number of axes that one does not have.
    """
    a_axes, b_axes = _contracted_axes(a, b, dims)
    summed = [
        broadcast_shape("tensordot", (a.shape[i],), (b.shape[j],))[0] for i, j in zip(a_axes, b_axes, strict=True)
    ]
    a, b = _broadcast_axes(a, a_axes, summed), _broadcast_axes(b, b_axes, summed)
    rows, columns = ([i for i in range(t.ndim) if i not in over] for t, over in ((a, a_axes), (b, b_axes)))
    left = reshape(permute(a, (*rows, *a_axes)), (math.prod(a.shape[i] for i in rows), math.prod(summed)))
    right = reshape(permute(b, (*b_axes, *columns)), (math.prod(summed), math.prod(b.shape[i] for i in columns)))
    return reshape(tensordot_(left, right), (*(a.shape[i] for i in rows), *(b.shape[i] for i in columns)))


def _contracted_axes(a: Tensor, b: Tensor, dims: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    # The contracted axes of a and of b.
    if is_whole(dims):
        dims = index(dims)
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise ArgumentError("tensordot", f"dims from 0 to {min(a.ndim, b.ndim)}", f"{dims}")
        dims = tuple(range(a.ndim - dims, a.ndim)), tuple(range(dims))
    if len(dims) != 2 or not all(isinstance(over, (list, tuple)) for over in dims):
        raise ArgumentError("tensordot", "dims as a number, or two lists of axes", repr(dims)[:80])
    pairs = zip((a, b), dims, strict=True)
    a_axes, b_axes = (normalize_axes("tensordot", tuple(over), t.ndim) if len(over) else () for t, over in pairs)
    if len(a_axes) != len(b_axes):
        raise ShapeError("tensordot", "as many axes of a as of b", f"{len(a_axes)} and {len(b_axes)}")
    return a_axes, b_axes


def _broadcast_axes(x: Tensor, over: tuple[int, ...], lengths: list[int]) -> Tensor:
    shape = list(x.shape)
    for i, length in zip(over, lengths, strict=True):
        shape[i] = length
    return x if shape == list(x.shape) else broadcast_to(x, tuple(shape))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: each element of input times all of other: [a], [b] -> [a b]; leading axes are added."""
    rank = max(input.ndim, other.ndim)
    a_shape, b_shape = ((1,) * (rank - t.ndim) + tuple(t.shape) for t in (input, other))
    left = reshape(input, [n for size in a_shape for n in (size, 1)])
    right = reshape(other, [n for size in b_shape for n in (1, size)])
    return reshape(mul(left, right), [a * b for a, b in zip(a_shape, b_shape, strict=True)])


@op(cast=Cast.WIDEST)
def bilinear(input1: Array, input2: Array, weight: Array, bias: Array | None = None):
    """input1^T W_o input2 + bias_o for each output o.

    input1 [..., I], input2 [..., J], weight [O, I, J], bias [O] -> [..., O]. Summed in float32 (float64 for float64,
    int64 for integers) with the bias, and rounded once. Raises ShapeError for shapes that do not fit.
    """
    outs, height, width = weight.shape
    left = as_matrix(input1) @ weight.transpose(1, 0, 2).reshape(height, outs * width)
    out = blocked_sum(left.reshape(len(left), outs, width) * as_matrix(input2)[:, None], 2)
    if bias is not None:
        out = out + bias
    return out.reshape(*input1.shape[:-1], outs), Saved(input1=input1, input2=input2, weight=weight)


@bilinear.check
def bilinear_check(input1, input2, weight, bias):
    a, b, kernel = np.shape(input1), np.shape(input2), np.shape(weight)
    if len(kernel) != 3:
        raise ShapeError("bilinear", "weight [O, I, J]", f"weight {list(kernel)}")
    if a[-1:] != kernel[1:2] or b[-1:] != kernel[2:] or a[:-1] != b[:-1]:
        needs = f"input1 [..., {kernel[1]}] and input2 [..., {kernel[2]}] for weight {list(kernel)}"
        raise ShapeError("bilinear", needs, f"input1 {list(a)} and input2 {list(b)}")
    if bias is not None and np.shape(bias) != kernel[:1]:
        raise ShapeError("bilinear", f"bias [{kernel[0]}]", f"bias {list(np.shape(bias))}")


@bilinear.backward(input1="input2 weight", input2="input1 weight", weight="input1 input2")
def bilinear_backward(dy, saved, needs):
    rows, da, db, dw = as_matrix(dy), None, None, None
    if needs[0] is not None:
        outs, height, width = saved.weight.shape
        transposed = saved.weight.transpose(0, 2, 1).reshape(outs * width, height)
        da = (_pairs(rows, saved.input2) @ transposed).reshape(*dy.shape[:-1], height)
    if needs[1] is not None:
        outs, height, width = saved.weight.shape
        db = (_pairs(rows, saved.input1) @ saved.weight.reshape(outs * height, width)).reshape(*dy.shape[:-1], width)
    if needs[2] is not None:
        sizes = dy.shape[-1], saved.input1.shape[-1], saved.input2.shape[-1]
        dw = (_pairs(rows, saved.input1).swapaxes(0, 1) @ as_matrix(saved.input2)).reshape(*sizes)
    return da, db, dw, blocked_sum(rows, 0) if needs[3] is not None else None


def _pairs(dy: Any, input: Any) -> Any:
    # The outer product of each row: [B, O], [..., n] -> [B, O n].
    rows = as_matrix(input)
    return (dy[:, :, None] * rows[:, None]).reshape(len(rows), dy.shape[1] * rows.shape[1])
