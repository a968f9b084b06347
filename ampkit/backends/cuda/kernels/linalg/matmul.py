"""Kernels of the products: one call of cublasLt for each, whatever the strides of the operands."""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.backends.cuda.libs.gemm import answer, column_sums, fits, folded, product, rounds
from ampkit.base.dtypes import DType, accumulator
from ampkit.core.autograd.saved import Saved
from ampkit.ops.linalg import matmul

Array = Any  # a CuPy array
_MISSING = object()  # a product that nothing can do


def _answer(*gradients: Any) -> Any:
    """The gradients; NotImplemented, which leaves them to the reference, where one is missing."""
    return NotImplemented if any(each is _MISSING for each in gradients) else gradients


def _gradient(a: Array, b: Array, dtype: DType, home: Array | None = None, **more: Any) -> Any:
    found = product(a, b, dtype, home, **more)
    return _MISSING if found is None else found


def _turned(array: Array) -> Array:
    return array.swapaxes(-1, -2)


# linear


@matmul.linear.on("cuda", when=lambda input, weight, bias: fits(input, weight, bias))
def linear_cuda(input: Array, weight: Array, bias: Array | None, *, dtype: DType) -> Any:
    if bias is not None and answer(input.dtype, dtype) != bias.dtype:
        return NotImplemented
    out = product(input if input.ndim > 1 else input[None], weight.T, dtype, bias=bias)
    if out is None:
        return NotImplemented
    return out if input.ndim > 1 else out.reshape(-1), Saved(input=input, weight=weight)


def _linear_fits(dy: Array, saved: Saved, needs: Any) -> bool:
    return fits(dy, saved.weight if needs[0] else None, saved.input if needs[1] else None)


@matmul.linear.on_backward("cuda", when=_linear_fits, wants_cache=True)
def linear_backward_cuda(dy: Array, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
    dx = dw = db = None
    if needs[0]:
        dx = _gradient(dy if dy.ndim > 1 else dy[None], saved.weight, needs[0])
        dx = dx if dx is _MISSING or dy.ndim > 1 else dx.reshape(-1)
    if needs[1] or needs[2]:
        rows = folded(dy)
        dw, db = _weight_gradients(rows, saved, needs, grad_buffers) if needs[1] else (None, None)
        db = column_sums(rows, needs[2]) if needs[2] and db is None else db
    return _answer(dx, dw, db)


def _weight_gradients(rows: Array, saved: Saved, needs: Any, grad_buffers: Any) -> tuple[Any, Any]:
    # Also that of the bias, where one product can leave both.
    columns = folded(saved.input)
    if needs[2] and needs[2] == answer(rows.dtype, needs[1]) and not rounds(rows.dtype):
        home, room = grad_buffers[2], backends.backend_of(rows).empty
        sums = room(rows.shape[1:], needs[2]) if home is None or home.dtype != needs[2] else home
        dw = _gradient(rows.T, columns, needs[1], grad_buffers[1], sums=sums)
        if dw is not _MISSING:
            return dw, sums
    return _gradient(rows.T, columns, needs[1], grad_buffers[1]), None


# matmul, mm, tensordot, bmm, mv, dot, vdot: two operands, of which one with a single axis is a row, or on the right a
# column


def _matrices(a: Array, b: Array) -> tuple[Array, Array]:
    return a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]


def _two(op: Any, second: str) -> None:
    def forward(input: Array, other: Array, *, dtype: DType) -> Any:
        out = product(*_matrices(input, other), dtype)
        if out is None:
            return NotImplemented
        lead, kept = out.shape[:-2], {}
        if op is matmul.matmul:
            summed = tuple([each.ndim > 1 and each.shape[:-2] != lead for each in (input, other)])
            kept = {"shared": input.ndim > 2 and other.ndim <= 2, "summed": summed}
        if input.ndim == 1 or other.ndim == 1:
            out = out.reshape((*lead, *input.shape[-2:-1], *(other.shape[-1:] if other.ndim > 1 else ())))
        return out, Saved(input=input, **{second: other}, **kept)

    def worth(dy: Array, saved: Saved, needs: Any) -> bool:
        return fits(dy, saved.__dict__[second] if needs[0] else None, saved.input if needs[1] else None)

    def backward(dy: Array, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
        da = db = None
        summed = getattr(saved, "summed", (op is matmul.matmul,) * 2)
        wanted = [accumulator(need) if need and some else need for need, some in zip(needs, summed, strict=True)]
        if needs[0]:
            da = _left_gradient(dy, saved.__dict__[second], wanted[0], grad_buffers[0])
        if needs[1]:
            db = _right_gradient(dy, saved.input, wanted[1], grad_buffers[1], getattr(saved, "shared", False))
        return _answer(da, db)

    op.on("cuda", when=lambda input, other: fits(input, other))(forward)
    op.on_backward("cuda", when=worth, wants_cache=True)(backward)


def _left_gradient(dy: Array, b: Array, dtype: DType, home: Array | None) -> Any:
    vector = dy.ndim < b.ndim  # the left operand was one: it has no row
    if b.ndim == 1:
        dy, b = dy[..., None], b[:, None]
    da = _gradient(dy[..., None, :] if vector else dy, _turned(b), dtype, home)
    return da.reshape(*da.shape[:-2], da.shape[-1]) if vector and da is not _MISSING else da


def _right_gradient(dy: Array, a: Array, dtype: DType, home: Array | None, shared: bool) -> Any:
    vector = dy.ndim < a.ndim  # the right operand was one: it has no column
    dy = dy[..., None] if vector else dy
    if a.ndim == 1:
        dy, a = dy[..., None, :], a[None]
    a, dy = (folded(a), folded(dy)) if shared else (a, dy)
    db = _gradient(_turned(a), dy, dtype, home)
    return db.reshape(db.shape[:-1]) if vector and db is not _MISSING else db


for _op, _second in (
    (matmul.matmul, "other"),
    (matmul.mm, "mat2"),
    (matmul.tensordot_, "other"),
    (matmul.bmm, "mat2"),
    (matmul.mv, "vec"),
    (matmul.dot, "tensor"),
    (matmul.vdot, "other"),
):
    _two(_op, _second)


@matmul.outer.on_backward(
    "cuda", when=lambda dy, saved, needs: fits(dy, saved.vec2 if needs[0] else None, saved.input if needs[1] else None)
)
def outer_backward_cuda(dy: Array, saved: Saved, needs: Any) -> Any:
    da = _gradient(dy, saved.vec2[:, None], needs[0]) if needs[0] else None
    db = _gradient(saved.input[None], dy, needs[1]) if needs[1] else None
    return _answer(*(each if each is None or each is _MISSING else each.reshape(-1) for each in (da, db)))


# addmm, baddbmm: a product, and what is added to it before the one rounding


def _added_fits(input: Any, first: Array, second: Array, beta: Any, alpha: Any) -> bool:
    return alpha != 0 and hasattr(input, "dtype") and fits(first, second, input)


def _added(op: Any, first: str, second: str) -> None:
    def forward(input: Array, left: Array, right: Array, *, beta: float, alpha: float, dtype: DType) -> Any:
        if dtype != left.dtype:
            return NotImplemented
        row = beta == 1 and input.shape[-1:] == right.shape[-1:] and input.size == right.shape[-1]
        more: Any = {"bias": input.reshape(-1)} if row else {"addend": input, "beta": float(beta)} if beta else {}
        out = product(left, right, dtype, alpha=float(alpha), **more)
        return NotImplemented if out is None else (out, Saved(**{first: left, second: right}))

    def worth(dy: Array, saved: Saved, needs: Any, beta: float, alpha: float) -> bool:
        used = [saved.__dict__[name] for name, need in ((second, needs[1]), (first, needs[2])) if need]
        return alpha != 0 and bool(used) and fits(dy, *used)

    def backward(
        dy: Array, saved: Saved, needs: Any, versions: Any, grad_buffers: Any, *, beta: float, alpha: float
    ) -> Any:
        da = db = None
        if needs[1]:
            da = _gradient(dy, _turned(saved.__dict__[second]), needs[1], grad_buffers[1], alpha=float(alpha))
        if needs[2]:
            db = _gradient(_turned(saved.__dict__[first]), dy, needs[2], grad_buffers[2], alpha=float(alpha))
        return _answer(_scaled(dy, beta) if needs[0] else None, da, db)

    op.on("cuda", when=_added_fits)(forward)
    op.on_backward("cuda", when=worth, wants_cache=True)(backward)


def _scaled(dy: Array, factor: float) -> Array:
    wide = accumulator(dy.dtype)
    return dy if factor == 1 else backends.backend_of(dy).cast(dy, wide) * wide.type(factor)


_added(matmul.addmm, "mat1", "mat2")
_added(matmul.baddbmm, "batch1", "batch2")
