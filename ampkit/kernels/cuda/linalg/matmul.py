"""CUDA kernels of matrix products: each is one call of cublasLt, whatever the strides of the operands.

Where cublasLt has no algorithm, the reference runs.
"""

from __future__ import annotations

from contextlib import suppress
from operator import eq
from typing import Any

from ampkit import backends
from ampkit.backends.cuda.libs.gemm import (
    aligned_operand,
    as_matrix,
    column_sums,
    fits,
    output_dtype,
    product,
    rounds_operands,
)
from ampkit.base.dtypes import Array, DType, accumulator
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.ops.linalg import matmul


def _transposed(array: Array) -> Array:
    return array.swapaxes(-1, -2)


def _as_row(array: Array) -> Array:
    """A vector as a matrix with one row; other arrays as they are."""
    return array if array.ndim > 1 else array[None]


def _as_column(array: Array) -> Array:
    """A vector as a matrix with one column; other arrays as they are."""
    return array if array.ndim > 1 else array[:, None]


# linear


@matmul.linear.on("cuda", when=fits)
def linear_cuda(input: Array, weight: Array, bias: Array | None, *, dtype: DType) -> Any:
    if bias is not None and output_dtype(input.dtype, dtype) != bias.dtype:
        raise UnsupportedError
    out = product(_as_row(input), weight.T, dtype, bias=bias)
    return out if input.ndim > 1 else out[0], Saved(input=input, weight=weight)


def _linear_fits(dy: Array, saved: Saved, needs: Any) -> bool:
    return fits(dy, saved.weight if needs[0] else None, saved.input if needs[1] else None)


@matmul.linear.on_backward("cuda", when=_linear_fits, wants_cache=True)
def linear_backward_cuda(dy: Array, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
    if needs[0] and needs[1]:
        dy = aligned_operand(dy, saved.weight.shape[1])
    dx = _left_gradient(dy, saved.weight.T, needs[0], None) if needs[0] else None
    rows = as_matrix(dy) if needs[1] or needs[2] else None
    dw, db = _weight_gradients(rows, as_matrix(saved.input), needs, grad_buffers) if needs[1] else (None, None)
    return dx, dw, column_sums(rows, needs[2]) if needs[2] and db is None else db


def _weight_gradients(dy: Array, x: Array, needs: Any, grad_buffers: Any) -> tuple[Array | None, Array | None]:
    """The gradient of the weight, and that of the bias if cublasLt can sum the rows of dy in the same call.

    dy [rows, out], x [rows, in]. Rounded to TF32, the rows of dy would give other sums.
    """
    if needs[2] and needs[2] == output_dtype(dy.dtype, needs[1]) and not rounds_operands(dy.dtype):
        db = grad_buffers[2]
        if db is None or db.dtype != needs[2]:
            db = backends.backend_of(dy).empty(dy.shape[1:], needs[2])
        with suppress(UnsupportedError):
            return product(dy.T, x, needs[1], grad_buffers[1], row_sums=db), db
    return product(dy.T, x, needs[1], grad_buffers[1]), None


# Products of two operands; a vector on the left is a row, on the right a column.


def _register_product(op: Any, second: str) -> None:
    """Register forward and backward of `op`, whose operands are `input` and the parameter named `second`."""

    def forward(input: Array, other: Array, *, dtype: DType) -> Any:
        out = product(_as_row(input), _as_column(other), dtype)
        batch, saved = out.shape[:-2], Saved(input=input, **{second: other})
        if op is matmul.matmul:
            saved.shared = input.ndim > 2 and other.ndim <= 2
            saved.broadcast = tuple([each.ndim > 1 and each.shape[:-2] != batch for each in (input, other)])
        if input.ndim == 1 or other.ndim == 1:
            out = out.reshape((*batch, *input.shape[-2:-1], *(other.shape[-1:] if other.ndim > 1 else ())))
        return out, saved

    def supports_backward(dy: Array, saved: Saved, needs: Any) -> bool:
        return fits(dy, vars(saved)[second] if needs[0] else None, saved.input if needs[1] else None)

    def backward(dy: Array, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
        # The tape sums over the batch axes that an operand was broadcast along: it gets unrounded terms.
        broadcast = getattr(saved, "broadcast", (op is matmul.matmul,) * 2)
        left, right = (accumulator(n) if n and summed else n for n, summed in zip(needs, broadcast, strict=True))
        da = _left_gradient(dy, vars(saved)[second], left, grad_buffers[0]) if left else None
        if not right:
            return da, None
        return da, _right_gradient(dy, saved.input, right, grad_buffers[1], getattr(saved, "shared", False))

    op.on("cuda", when=lambda input, other: fits(input, other))(forward)
    op.on_backward("cuda", when=supports_backward, wants_cache=True)(backward)


def _left_gradient(dy: Array, b: Array, dtype: DType, buffer: Array | None) -> Array:
    """The gradient of `a` in a @ b; dy lacks the axis of rows where `a` is a vector, that of columns where b is one."""
    a_is_vector = dy.ndim < b.ndim
    dy = dy[..., None] if b.ndim == 1 else dy
    da = product(dy[..., None, :] if a_is_vector else dy, _transposed(_as_column(b)), dtype, buffer)
    return da[..., 0, :] if a_is_vector else da


def _right_gradient(dy: Array, a: Array, dtype: DType, buffer: Array | None, shared: bool) -> Array:
    """The gradient of b in a @ b, as `_left_gradient`. shared: one b for a batch of `a`; the product sums over it."""
    b_is_vector = dy.ndim < a.ndim
    dy = dy[..., None] if b_is_vector else dy
    dy = dy[..., None, :] if a.ndim == 1 else dy
    a, dy = (as_matrix(a), as_matrix(dy)) if shared else (_as_row(a), dy)
    db = product(_transposed(a), dy, dtype, buffer)
    return db[..., 0] if b_is_vector else db


_register_product(matmul.matmul, "other")
_register_product(matmul.mm, "mat2")
_register_product(matmul.tensordot_, "other")
_register_product(matmul.bmm, "mat2")
_register_product(matmul.mv, "vec")
_register_product(matmul.dot, "tensor")
_register_product(matmul.vdot, "other")


@matmul.outer.on_backward(
    "cuda", when=lambda dy, saved, needs: fits(dy, saved.vec2 if needs[0] else None, saved.input if needs[1] else None)
)
def outer_backward_cuda(dy: Array, saved: Saved, needs: Any) -> Any:
    da = product(dy, saved.vec2[:, None], needs[0])[:, 0] if needs[0] else None
    return da, product(dy.T, saved.input[:, None], needs[1])[:, 0] if needs[1] else None


# addmm and baddbmm: beta * input + alpha * (a @ b), rounded once


def _addmm_fits(input: Any, a: Array, b: Array, beta: Any, alpha: Any) -> bool:
    return alpha != 0 and hasattr(input, "dtype") and fits(a, b, input)


def _register_addmm(op: Any, first: str, second: str) -> None:
    """Register forward and backward of `op`, whose factors are the parameters named `first` and `second`."""

    def forward(input: Array, a: Array, b: Array, *, beta: float, alpha: float, dtype: DType) -> Any:
        is_bias = beta == 1 and input.shape[-1:] == b.shape[-1:] and input.size == b.shape[-1]
        more: Any = {"bias": input.reshape(-1)} if is_bias else {"addend": input, "beta": float(beta)} if beta else {}
        return product(a, b, dtype, alpha=float(alpha), **more), Saved(**{first: a, second: b})

    def supports_backward(dy: Array, saved: Saved, needs: Any, beta: float, alpha: float) -> bool:
        used = [vars(saved)[name] for name, need in ((second, needs[1]), (first, needs[2])) if need]
        return alpha != 0 and bool(used) and fits(dy, *used)

    def backward(
        dy: Array, saved: Saved, needs: Any, versions: Any, grad_buffers: Any, *, beta: float, alpha: float
    ) -> Any:
        def gradient(a: Array, b: Array, i: int) -> Array:
            return product(a, b, needs[i], grad_buffers[i], alpha=float(alpha))

        da = gradient(dy, _transposed(vars(saved)[second]), 1) if needs[1] else None
        db = gradient(_transposed(vars(saved)[first]), dy, 2) if needs[2] else None
        return _scaled(dy, beta) if needs[0] else None, da, db

    op.on("cuda", when=_addmm_fits, dtypes=eq)(forward)
    op.on_backward("cuda", when=supports_backward, wants_cache=True)(backward)


def _scaled(dy: Array, factor: float) -> Array:
    """dy * factor in the accumulator dtype."""
    acc = accumulator(dy.dtype)
    return dy if factor == 1 else backends.backend_of(dy).cast(dy, acc) * acc.type(factor)


_register_addmm(matmul.addmm, "mat1", "mat2")
_register_addmm(matmul.baddbmm, "batch1", "batch2")
