"""Bodies of the products: one call of cublasLt for each, whatever the strides of the operands."""

from __future__ import annotations

from typing import Any

from ... import backends
from ...core.dtypes import DType, accumulator
from ...core.saved import Saved
from ...ops import products
from .gemm import answer, column_sums, fits, folded, multiply, product

Array = Any  # a CuPy array


def _turned(array: Array) -> Array:
    return array.swapaxes(-1, -2)


def _answer(*gradients: Any) -> Any:
    """The gradients; NotImplemented, which leaves them to the reference, where one was wanted and is missing."""
    return NotImplemented if any(each is NotImplemented for each in gradients) else gradients


def _gradient(a: Array, b: Array, dtype: DType | None, home: Array | None = None, **more: Any) -> Any:
    if dtype is None:
        return None
    found = product(a, b, dtype, home, **more)
    return NotImplemented if found is None else found


# linear


@products.linear.on("cuda", when=lambda input, weight, bias: fits(input, weight))
def linear_cuda(input: Array, weight: Array, bias: Array | None, *, dtype: DType) -> Any:
    rows = input if input.ndim > 1 else input[None]
    out = product(rows, weight.T, dtype, bias=bias)
    if out is None:
        return NotImplemented
    return out if input.ndim > 1 else out.reshape(-1), Saved(input=input, weight=weight)


def _linear_fits(dy: Array, saved: Saved, needs: Any) -> bool:
    return fits(dy, saved.weight if needs[0] else saved.input if needs[1] else dy)


@products.linear.backward_primitive.on(  # type: ignore[union-attr,untyped-decorator]
    "cuda", when=_linear_fits, keeps=True
)
def linear_backward_cuda(dy: Array, saved: Saved, needs: Any, versions: Any, homes: Any) -> Any:
    dx = None
    if needs[0]:
        dx = _gradient(dy if dy.ndim > 1 else dy[None], saved.weight, needs[0])
        dx = dx.reshape(-1) if dy.ndim == 1 and dx is not NotImplemented else dx
    rows = folded(dy) if needs[1] or needs[2] else None
    dw, db = _weight_gradients(rows, saved, needs, homes) if needs[1] else (None, None)
    return _answer(dx, dw, column_sums(rows, needs[2]) if needs[2] and db is None else db)


def _weight_gradients(rows: Array, saved: Saved, needs: Any, homes: Any) -> tuple[Any, Any]:
    # Also that of the bias, if one product can leave both.
    columns = folded(saved.input)
    if needs[2] and needs[2] == answer(rows.dtype, needs[1]):
        sums = backends.of(rows).empty(rows.shape[1:], needs[2])
        found = _gradient(rows.T, columns, needs[1], homes[1], sums=sums, exact=True)
        if found is not NotImplemented:
            return found, sums
    return _gradient(rows.T, columns, needs[1], homes[1]), None


# two operands: matmul, mm, bmm, mv, dot, vdot; one with a single axis is a vector, a row on the left, a column on the right


def _matrices(a: Array, b: Array) -> tuple[Array, Array]:
    return a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]


def _two(op: Any, second: str, least: int) -> None:
    def forward(input: Array, other: Array, *, dtype: DType) -> Any:
        out = product(*_matrices(input, other), dtype)
        if out is None:
            return NotImplemented
        kept = {"shared": input.ndim > 2 and other.ndim <= 2} if op is products.matmul else {}
        return _without(out, input.ndim == 1, other.ndim == 1), Saved(input=input, **{second: other}, **kept)

    def fits_backward(dy: Array, saved: Saved, needs: Any) -> bool:
        return fits(dy, saved.__dict__[second] if needs[0] else saved.input)

    def backward(dy: Array, saved: Saved, needs: Any, versions: Any, homes: Any) -> Any:
        left, right = saved.__dict__.get("input"), saved.__dict__.get(second)
        return _answer(
            _left_gradient(dy, right, needs[0], homes[0]) if needs[0] else None,
            _right_gradient(dy, left, needs[1], homes[1]) if needs[1] else None,
        )
    ...
