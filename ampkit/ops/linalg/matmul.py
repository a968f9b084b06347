"""Products of matrices and vectors: exact products of the elements, sums in float32, one rounding.

Leading axes are folded into one two-dimensional product where the other operand has none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError
from ampkit.core.autograd.traced_array import stands_for
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

from ..argument_checks import check_addend, check_factor, check_ndim, integer_factor

__all__ = ["addmm", "baddbmm", "bmm", "dot", "ger", "linear", "matmul", "mm", "mv", "outer", "vdot"]


@op(cast=Cast.LOW)
def linear(input: Array, weight: Array, bias: Array | None = None):
    """input times the transpose of weight, plus bias.

    input [..., in], weight [out, in], bias [out] -> [..., out]. Products are exact, summed in float32 with the bias,
    and rounded once. Raises ShapeError for shapes that do not fit.
    """
    out = as_matrix(input) @ weight.T
    if bias is not None:
        out += bias
    out = out if input.ndim == 2 else out.reshape(*input.shape[:-1], weight.shape[0])
    return out, Saved(input=input, weight=weight)


@linear.check
def linear_check(input, weight, bias):
    # Numbers have no shape; np.shape, which knows that too, takes longer than the rest of this check.
    shape: Any = getattr(input, "shape", ())
    kernel: Any = getattr(weight, "shape", ())
    more = None if bias is None else getattr(bias, "shape", ())
    if len(kernel) != 2:
        raise ShapeError("linear", "weight [out, in]", f"weight {list(kernel)}")
    if shape[-1:] != kernel[1:]:
        raise ShapeError("linear", f"input [..., {kernel[1]}] for weight {list(kernel)}", f"input {list(shape)}")
    if more is not None and more != kernel[:1]:
        raise ShapeError("linear", f"bias [{kernel[0]}] for weight {list(kernel)}", f"bias {list(more)}")


@linear.backward(input="weight", weight="input")
def linear_backward(dy, saved, needs):
    if dy.ndim == 1:  # few ops in a second derivative, without those that make rows and sum over them
        dx = dy @ saved.weight if needs[0] else None
        dw = dy.reshape(-1, 1) * saved.input if needs[1] else None
        return dx, dw, dy if needs[2] else None
    rows = as_matrix(dy)
    dx = (rows @ saved.weight).reshape(*dy.shape[:-1], saved.weight.shape[1]) if needs[0] else None
    dw = rows.T @ as_matrix(saved.input) if needs[1] else None
    return dx, dw, blocked_sum(rows, 0) if needs[2] else None


@op(cast=Cast.LOW, numpy=np.matmul)
def matmul(input: Array, other: Array):
    """The matrix product, batched over leading axes, which broadcast; an operand with one axis is a vector.

    input [..., M, K], other [..., K, N] -> [..., M, N]; a vector on the left drops M, on the right N. Precision as
    `linear`; integers stay integers. Raises ShapeError for shapes that do not fit.
    """
    shared = input.ndim > 2 and other.ndim <= 2  # one right operand for a whole batch
    return _product(input, other), Saved(input=input, other=other, shared=shared)


stands_for["matmul"] = matmul


@matmul.check
def matmul_check(input, other):
    a, b = np.shape(input), np.shape(other)
    if not a or not b:
        raise ShapeError("matmul", "operands with at least one axis", f"input {list(a)} and other {list(b)}")
    if a[-1] != b[-2:][0]:
        shape = f"[{a[-1]}]" if len(b) == 1 else f"[..., {a[-1]}, {b[-1]}]"
        raise ShapeError("matmul", f"other {shape} for input {list(a)}", f"other {list(b)}")
    pairs = zip(a[-3::-1], b[-3::-1], strict=False) if len(a) > 2 and len(b) > 2 else ()
    if any(m != n and 1 not in (m, n) for m, n in pairs):
        raise ShapeError("matmul", "leading axes that broadcast", f"input {list(a)} and other {list(b)}")


@matmul.backward(input="other", other="input")
def matmul_backward(dy, saved, needs):
    da = _left_gradient(dy, saved.other) if needs[0] else None
    return da, _right_gradient(dy, saved.input, saved.shared) if needs[1] else None


@op(cast=Cast.LOW)
def mm(input: Array, mat2: Array):
    """The product of two matrices: input [M, K], mat2 [K, N] -> [M, N]. Precision and errors as `matmul`."""
    return input @ mat2, Saved(input=input, mat2=mat2)


mm.check(lambda input, mat2: check_factor("mm", "mat2", mat2, "input", input, "[{1}, N]", "[M, K]"))


@op(cast=Cast.WIDEST)
def tensordot_(input: Array, other: Array):
    """`tensordot` of matrices over one pair of axes: input [M, K], other [K, N] -> [M, N]."""
    return input @ other, Saved(input=input, other=other)


@tensordot_.backward(input="other", other="input")
def tensordot_backward(dy, saved, needs):
    return dy @ saved.other.T if needs[0] else None, saved.input.T @ dy if needs[1] else None


@op(cast=Cast.LOW)
def bmm(input: Array, mat2: Array):
    """A batch of matrix products: input [B, M, K], mat2 [B, K, N] -> [B, M, N]. Precision and errors as `matmul`."""
    return input @ mat2, Saved(input=input, mat2=mat2)


bmm.check(lambda input, mat2: check_factor("bmm", "mat2", mat2, "input", input, "[{0}, {2}, N]", "[B, M, K]"))


def matrix_product_backward(dy, saved, needs):
    da = dy @ saved.mat2.swapaxes(-1, -2) if needs[0] else None
    return da, saved.input.swapaxes(-1, -2) @ dy if needs[1] else None


for _op in (mm, bmm):
    _op.backward(input="mat2", mat2="input")(matrix_product_backward)


@op(cast=Cast.LOW)
def mv(input: Array, vec: Array):
    """A matrix times a vector: input [M, K], vec [K] -> [M]. Precision and errors as `matmul`."""
    return input @ vec, Saved(input=input, vec=vec)


mv.check(lambda input, vec: check_factor("mv", "vec", vec, "input", input, "[{1}]", "[M, K]"))


@mv.backward(input="vec", vec="input")
def mv_backward(dy, saved, needs):
    da = _column(dy) * saved.vec if needs[0] else None
    return da, dy @ saved.input if needs[1] else None


@op(cast=Cast.WIDEST)
def dot(input: Array, tensor: Array):
    """The inner product of two vectors: input [K], tensor [K] -> []. Summed in float32 and rounded once."""
    return input @ tensor, Saved(input=input, tensor=tensor)


dot.check(lambda input, tensor: check_factor("dot", "tensor", tensor, "input", input, "[{0}]", "[K]"))


@dot.backward(input="tensor", tensor="input")
def dot_backward(dy, saved, needs):
    return dy * saved.tensor if needs[0] else None, dy * saved.input if needs[1] else None


@op(cast=Cast.WIDEST)
def vdot(input: Array, other: Array):
    """`dot` by its other name, as real numbers have no conjugate: input [K], other [K] -> []."""
    return input @ other, Saved(input=input, other=other)


vdot.check(lambda input, other: check_factor("vdot", "other", other, "input", input, "[{0}]", "[K]"))


@vdot.backward(input="other", other="input")
def vdot_backward(dy, saved, needs):
    return dy * saved.other if needs[0] else None, dy * saved.input if needs[1] else None


@op(cast=Cast.WIDEST)
def outer(input: Array, vec2: Array):
    """The outer product of two vectors: input [M], vec2 [N] -> [M, N]. Raises ShapeError for other ranks."""
    return _column(input) * vec2, Saved(input=input, vec2=vec2)


@outer.check
def outer_check(input, vec2):
    check_ndim("outer", "input", input, "[M]")
    check_ndim("outer", "vec2", vec2, "[N]")


@outer.backward(input="vec2", vec2="input")
def outer_backward(dy, saved, needs):
    return dy @ saved.vec2 if needs[0] else None, saved.input @ dy if needs[1] else None


@op(cast=Cast.LOW)
def addmm(input: Array, mat1: Array, mat2: Array, *, beta: float = 1, alpha: float = 1):
    """beta * input + alpha * (mat1 @ mat2), rounded once; beta=0 ignores input, also its NaN.

    input broadcastable to [M, N], mat1 [M, K], mat2 [K, N] -> [M, N]. Raises ShapeError for shapes that do not fit.
    """
    return _add_scaled(input, mat1 @ mat2, beta, alpha), Saved(mat1=mat1, mat2=mat2)


@addmm.check
def addmm_check(input, mat1, mat2, beta, alpha):
    check_factor("addmm", "mat2", mat2, "mat1", mat1, "[{1}, N]", "[M, K]")
    check_addend("addmm", input, (mat1.shape[0], mat2.shape[1]))


@addmm.backward(mat1="mat2", mat2="mat1")
def addmm_backward(dy, saved, needs, beta, alpha):
    scaled = dy if alpha == 1 else dy * alpha
    da = scaled @ saved.mat2.T if needs[1] else None
    return dy * beta if needs[0] else None, da, saved.mat1.T @ scaled if needs[2] else None


@op(cast=Cast.LOW)
def baddbmm(input: Array, batch1: Array, batch2: Array, *, beta: float = 1, alpha: float = 1):
    """beta * input + alpha * (batch1 @ batch2), rounded once; beta=0 ignores input, also its NaN.

    input broadcastable to [B, M, N], batch1 [B, M, K], batch2 [B, K, N] -> [B, M, N]. Raises ShapeError as `addmm`.
    """
    return _add_scaled(input, batch1 @ batch2, beta, alpha), Saved(batch1=batch1, batch2=batch2)


@baddbmm.check
def baddbmm_check(input, batch1, batch2, beta, alpha):
    check_factor("baddbmm", "batch2", batch2, "batch1", batch1, "[{0}, {2}, N]", "[B, M, K]")
    check_addend("baddbmm", input, (*batch1.shape[:2], batch2.shape[2]))


@baddbmm.backward(batch1="batch2", batch2="batch1")
def baddbmm_backward(dy, saved, needs, beta, alpha):
    scaled = dy if alpha == 1 else dy * alpha
    da = scaled @ saved.batch2.swapaxes(1, 2) if needs[1] else None
    return dy * beta if needs[0] else None, da, saved.batch1.swapaxes(1, 2) @ scaled if needs[2] else None


def as_matrix(array: Array) -> Array:
    """[..., K] -> [rows, K]."""
    return array if array.ndim == 2 else array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _column(array: Array) -> Array:
    return array.reshape(*array.shape, 1)


def _row(array: Array) -> Array:
    return array.reshape(*array.shape[:-1], 1, array.shape[-1])


def _product(a: Array, b: Array) -> Array:
    if a.ndim > 2 and b.ndim == 2:
        return (as_matrix(a) @ b).reshape(*a.shape[:-1], b.shape[1])
    return a @ b


def _left_gradient(dy: Array, b: Array) -> Array:
    is_vector = dy.ndim < b.ndim  # the left operand was a vector
    dy = _column(dy) if b.ndim == 1 else dy
    dy = _row(dy) if is_vector else dy
    da = _product(dy, (_column(b) if b.ndim == 1 else b).swapaxes(-1, -2))
    return da.reshape(*da.shape[:-2], da.shape[-1]) if is_vector else da


def _right_gradient(dy: Array, a: Array, shared: bool) -> Array:
    is_vector = dy.ndim < a.ndim  # the right operand was a vector
    dy = _column(dy) if is_vector else dy
    dy = _row(dy) if a.ndim == 1 else dy
    a = _row(a) if a.ndim == 1 else a
    db = as_matrix(a).T @ as_matrix(dy) if shared else a.swapaxes(-1, -2) @ dy
    return db.reshape(db.shape[:-1]) if is_vector else db


def _add_scaled(input: Any, found: Array, beta: float, alpha: float) -> Array:
    beta, alpha = (integer_factor("addmm", "alpha and beta", factor, input, found) for factor in (beta, alpha))
    found = found if alpha == 1 else found * alpha
    return found if beta == 0 else found + (input if beta == 1 else input * beta)


ger = outer
