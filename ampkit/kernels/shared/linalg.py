"""Registers matrix products as kernels: linear, products of two operands, addmm and baddbmm, einsum, products of
quantized matrices, the feed-forward layer by its parts. What a backend gives is a product of matrices; the operands of
the gradients' products are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ampkit import backends
from ampkit.base.dtypes import Array, DType, accumulator, float32
from ampkit.core.autograd.saved import Saved
from ampkit.core.policy.recipe import INT8
from ampkit.ops.linalg import matmul
from ampkit.ops.linalg.einsum import einsum_, matrix_product, matrix_product_gradients, parse_equation
from ampkit.ops.linalg.quantization import Quantized, dequantize_, quantize_, quantize_both_, scaled_mm_
from ampkit.ops.nn import fused

from .registration import on

_PRODUCTS = (  # of two operands, and the name of the second; a vector on the left is a row, on the right a column
    (matmul.matmul, "other"),
    (matmul.mm, "mat2"),
    (matmul.tensordot_, "other"),
    (matmul.bmm, "mat2"),
    (matmul.mv, "vec"),
)


@dataclass(frozen=True)
class Multiplier:
    """How a backend multiplies matrices. Functions raise UnsupportedError for what they do not take.

    product(a [..., M, K], b [..., K, N], dtype, buffer=None, bias=None, key=None) -> a @ b + bias [N] in dtype. buffer
    is written to and returned if shape and dtype match; key: version and owner of b, to cache what is derived from it.
    added(input, a, b, beta, alpha, dtype, key) -> beta * input + alpha * (a @ b), rounded once.
    scaled(a, b, dtype, buffer, alpha) -> alpha * (a @ b).
    weight_gradients(dy, saved, needs, grad_buffers) -> the gradients of weight and bias of linear.
    prepared(dy, depth) -> dy as several products read it; depth: their size that is not one of dy, 0 for unknown.
    linear_fits, product_fits and added_fits are predicates of the forwards; gradients_fit(op, first, second, at) makes
    that of a backward, whose operands are saved as `first` and `second`, the inputs `at` and at + 1.
    caches: whether forwards receive versions for `key`.
    """

    backend: str
    product: Callable[..., Any]
    added: Callable[..., Any]
    scaled: Callable[..., Any]
    weight_gradients: Callable[..., Any]
    prepared: Callable[[Any, int], Any]
    linear_fits: Callable[..., bool]
    product_fits: Callable[..., bool]
    added_fits: Callable[..., bool]
    gradients_fit: Callable[..., Callable[..., bool]]
    caches: bool = False

    def on(self, op: Any, first: str, second: str, forward: Any, fits: Any, backward: Any, at: int = 0) -> None:
        """Register both directions of an op, whose operands are `first` and `second`, the inputs `at` and at + 1."""
        on(op, self.backend, forward, fits, wants_cache=self.caches)
        backward_fits = self.gradients_fit(op, first, second, at)
        on(op.backward_primitive, self.backend, backward, backward_fits, wants_cache=True)


def register_products(multiplier: Multiplier, *more: tuple[Any, str]) -> None:
    """Register linear, products of two operands and those with an addend. more: further products of two operands."""
    _register_linear(multiplier)
    for op, second in (*_PRODUCTS, *more):
        _register_product(multiplier, op, second)
    _register_added_product(multiplier, matmul.addmm, "mat1", "mat2")
    _register_added_product(multiplier, matmul.baddbmm, "batch1", "batch2")


def as_row(array: Array) -> Array:
    """A vector as a matrix with one row; other arrays as they are."""
    return array if array.ndim > 1 else array[None]


def as_column(array: Array) -> Array:
    """A vector as a matrix with one column; other arrays as they are."""
    return array if array.ndim > 1 else array[:, None]


def left_operands(dy: Array, b: Array) -> tuple[Array, Array, bool]:
    """(dy, b^T), whose product is the gradient of `a` in a @ b, and whether `a` is a vector.

    dy lacks the axis of rows where `a` is a vector, that of columns where b is one.
    """
    a_is_vector = dy.ndim < b.ndim
    dy = dy[..., None] if b.ndim == 1 else dy
    return dy[..., None, :] if a_is_vector else dy, (b if b.ndim > 1 else b[:, None]).swapaxes(-1, -2), a_is_vector


def right_operands(dy: Array, a: Array, shared: bool) -> tuple[Array, Array, bool]:
    """(a^T, dy), whose product is the gradient of b in a @ b, and whether b is a vector.

    shared: one b for a batch of `a`; the product sums over the batch.
    """
    b_is_vector = dy.ndim < a.ndim
    dy = dy[..., None] if b_is_vector else dy
    dy = dy[..., None, :] if a.ndim == 1 else dy
    a, dy = (matmul.as_matrix(a), matmul.as_matrix(dy)) if shared else (a if a.ndim > 1 else a[None], dy)
    return a.swapaxes(-1, -2), dy, b_is_vector


def _register_linear(multiplier: Multiplier) -> None:
    product, prepared, weight_gradients = multiplier.product, multiplier.prepared, multiplier.weight_gradients

    def forward(input: Array, weight: Array, bias: Array | None, *, dtype: DType, versions: Any = ()) -> Any:
        x, key = input if input.ndim > 1 else input[None], versions and (versions[1], weight)
        out = product(x, weight.T, dtype, bias=bias, key=key)
        return out if input.ndim > 1 else out[0], Saved(input=input, weight=weight)

    def backward(dy: Array, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
        dy, dx = prepared(dy, saved.weight.shape[1] if needs[0] and needs[1] else 0), None
        if needs[0]:
            dx = product(dy if dy.ndim > 1 else dy[None], saved.weight, needs[0], key=(versions[1], saved.weight))
            dx = dx if dy.ndim > 1 else dx[0]
        return dx, *weight_gradients(dy, saved, needs, grad_buffers)

    multiplier.on(matmul.linear, "input", "weight", forward, multiplier.linear_fits, backward)


def _register_product(multiplier: Multiplier, op: Any, second: str) -> None:
    product, prepared = multiplier.product, multiplier.prepared
    batched = op is matmul.matmul

    def forward(input: Array, other: Array, *, dtype: DType, versions: Any = ()) -> Any:
        out = product(as_row(input), as_column(other), dtype, key=versions and (versions[1], other))
        batch, saved = out.shape[:-2], Saved(input=input, **{second: other})
        if batched:
            saved.shared = input.ndim > 2 >= other.ndim
            saved.broadcast = tuple([each.ndim > 1 and each.shape[:-2] != batch for each in (input, other)])
        if input.ndim == 1 or other.ndim == 1:
            out = out.reshape((*batch, *input.shape[-2:-1], *(other.shape[-1:] if other.ndim > 1 else ())))
        return out, saved

    def backward(dy: Array, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
        dy, (left, right), da, db = prepared(dy, 0), needs, None, None
        if batched:  # what the tape sums over batch axes is rounded after the sum
            broadcast = getattr(saved, "broadcast", (True, True))
            left, right = (accumulator(n) if n and summed else n for n, summed in zip(needs, broadcast, strict=True))
        if left:
            other = saved.__dict__[second]
            grad, factor, is_vector = left_operands(dy, other)
            da = product(grad, factor, left, grad_buffers[0], key=(versions[1], other))
            da = da[..., 0, :] if is_vector else da
        if right:
            factor, grad, is_vector = right_operands(dy, saved.input, getattr(saved, "shared", False))
            db = product(factor, grad, right, grad_buffers[1])
            db = db[..., 0] if is_vector else db
        return da, db

    multiplier.on(op, "input", second, forward, multiplier.product_fits, backward)


def _register_added_product(multiplier: Multiplier, op: Any, first: str, second: str) -> None:
    added, scaled, prepared = multiplier.added, multiplier.scaled, multiplier.prepared

    def forward(input: Any, a: Array, b: Array, *, beta: Any, alpha: Any, dtype: DType, versions: Any = ()) -> Any:
        out = added(input, a, b, beta, alpha, dtype, versions and (versions[2], b))
        return out, Saved(**{first: a, second: b})

    def backward(
        dy: Array, saved: Saved, needs: Any, versions: Any, grad_buffers: Any, *, beta: Any, alpha: Any
    ) -> Any:
        grad, da, db = prepared(dy, 0), None, None
        if needs[1]:
            da = scaled(grad, saved.__dict__[second].swapaxes(-1, -2), needs[1], grad_buffers[1], alpha)
        if needs[2]:
            db = scaled(saved.__dict__[first].swapaxes(-1, -2), grad, needs[2], grad_buffers[2], alpha)
        if needs[0] and beta != 1:
            acc = accumulator(dy.dtype)
            dy = (dy if dy.dtype == acc else backends.backend_of(dy).cast(dy, acc)) * acc.type(beta)
        return dy if needs[0] else None, da, db

    multiplier.on(op, first, second, forward, multiplier.added_fits, backward, 1)


def register_outer_backward(backend: str, product: Any, fits: Any, turned: bool) -> None:
    """Register the gradients of outer. turned: whether that of vec2 is dy^T times input, or else input^T times dy."""

    def backward(dy: Array, saved: Saved, needs: Any) -> Any:
        da, db = product(dy, as_column(saved.vec2), needs[0]).reshape(-1) if needs[0] else None, None
        if needs[1]:
            db = (
                product(dy.T, as_column(saved.input), needs[1])
                if turned
                else product(as_row(saved.input), dy, needs[1])
            )
        return da, db if db is None else db.reshape(-1)

    on(matmul.outer.backward_primitive, backend, backward, fits)


def register_by_op(backend: str) -> None:
    """Register linear_gelu_linear as the kernels of its parts, for what kernels registered before do not take."""
    op = fused.linear_gelu_linear
    on(op, backend, fused.linear_gelu_linear_by_op, wants_cache=True)
    on(op.backward_primitive, backend, fused.linear_gelu_linear_backward_by_op, fused.saved_hidden, wants_cache=True)


def register_einsum(backend: str, multiply: Any, fits: Any, backward_fits: Any, *reshape: Any) -> None:
    """Register equations of two operands that are one product. multiply, reshape: as `matrix_product` takes them."""

    def forward(operands: list[Array], equation: str, *, dtype: DType) -> Any:
        (first, second), out = parse_equation(equation, operands)
        found = matrix_product(multiply, first, operands[0], second, operands[1], out, dtype, *reshape)
        return found, Saved(operands=tuple(operands))

    def backward(dy: Array, saved: Saved, needs: Any, equation: str) -> Any:
        return matrix_product_gradients(multiply, dy, saved.operands, needs, equation, *reshape)

    on(einsum_, backend, forward, fits)
    on(einsum_.backward_primitive, backend, backward, backward_fits)


def register_quantization(
    backend: str, quantized: Any, both: Any, decoded: Any, multiplied: Any,
    quantizes: Any, quantizes_both: Any, decodes: Any, multiplies: Any,
) -> None:  # fmt: skip
    """Register quantized matrices and their products, whose sums are exact for rows of integers.

    quantized: called as `quantize_`. both(array, first, second, scale, draws of both, read_soon): as `quantize_both_`
    returns it. decoded(matrix, dtype) -> its values. multiplied(a, b, dtype, bias, buffer, whether the sums are of
    integers, with one scale for each row); the predicates are called as the primitives.
    """

    def quantize_both(
        array: Array, first: Any, second: Any, scale: Array | None, take: Any, read_soon: Any = (False, False)
    ) -> Any:
        draws = take() if first.stochastic else None, take() if second.stochastic else None
        return both(array, first, second, scale, draws, read_soon)

    def multiply(
        codes: Array, a: Quantized, b: Quantized, dtype: DType, bias: Array | None, buffer: Array | None = None
    ) -> Array:
        of_integers = a.how.format == INT8 and a.how.block[1] is b.how.block[1] is None
        return multiplied(a, b, dtype, bias, buffer, of_integers)

    on(quantize_, backend, quantized, quantizes)
    on(quantize_both_, backend, quantize_both, quantizes_both)
    on(dequantize_, backend, lambda codes, matrix: decoded(matrix, float32), decodes)
    on(scaled_mm_, backend, multiply, multiplies)
