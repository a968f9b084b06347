"""CUDA kernels of matrix products: each is one call of cublasLt, whatever the strides of the operands.

Where cublasLt has no algorithm, the reference runs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ampkit import backends
from ampkit.backends.cuda.libs.gemm import (
    aligned_operand,
    column_sums,
    fits,
    output_dtype,
    product,
    rounds_operands,
)
from ampkit.base.dtypes import Array, DType
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.linalg import Multiplier, register_outer_backward, register_products
from ampkit.ops.linalg import matmul


def _weight_gradients(dy: Array, saved: Saved, needs: Any, grad_buffers: Any) -> tuple[Array | None, Array | None]:
    """The gradient of the weight, and that of the bias: cublasLt sums the rows of dy in the same call where it can.

    Rounded to TF32, the rows of dy would give other sums.
    """
    if not needs[1]:
        return None, column_sums(matmul.as_matrix(dy), needs[2]) if needs[2] else None
    rows, x = matmul.as_matrix(dy), matmul.as_matrix(saved.input)
    if needs[2] and needs[2] == output_dtype(dy.dtype, needs[1]) and not rounds_operands(dy.dtype):
        db = grad_buffers[2]
        if db is None or db.dtype != needs[2]:
            db = backends.backend_of(dy).empty(rows.shape[1:], needs[2])
        with suppress(UnsupportedError):
            return product(rows.T, x, needs[1], grad_buffers[1], row_sums=db), db
    return product(rows.T, x, needs[1], grad_buffers[1]), column_sums(rows, needs[2]) if needs[2] else None


def _added(input: Array, a: Array, b: Array, beta: float, alpha: float, dtype: DType, key: Any) -> Array:
    if dtype != a.dtype:
        raise UnsupportedError
    is_bias = beta == 1 and input.shape[-1:] == b.shape[-1:] and input.size == b.shape[-1]
    more: Any = {"bias": input.reshape(-1)} if is_bias else {"addend": input, "beta": float(beta)} if beta else {}
    return product(a, b, dtype, alpha=float(alpha), **more)


def _scaled(a: Array, b: Array, dtype: DType, buffer: Array | None, alpha: float) -> Array:
    if alpha == 0:
        raise UnsupportedError
    return product(a, b, dtype, buffer, alpha=float(alpha))


def _added_fits(input: Any, a: Array, b: Array, beta: Any, alpha: Any) -> bool:
    return alpha != 0 and hasattr(input, "dtype") and fits(a, b, input)


def _gradients_fit(op: Any, first: str, second: str, at: int) -> Any:
    def gradients_fit(dy: Array, saved: Saved, needs: Any, **params: Any) -> bool:
        held = saved.__dict__
        return fits(dy, held[second] if needs[at] else None, held[first] if needs[at + 1] else None)

    return gradients_fit


register_products(
    Multiplier(
        "cuda",
        product=product,
        added=_added,
        scaled=_scaled,
        weight_gradients=_weight_gradients,
        prepared=aligned_operand,
        linear_fits=fits,
        product_fits=fits,
        added_fits=_added_fits,
        gradients_fit=_gradients_fit,
    ),
    (matmul.dot, "tensor"),
    (matmul.vdot, "other"),
)


register_outer_backward(
    "cuda",
    product,
    lambda dy, saved, needs: fits(dy, saved.vec2 if needs[0] else None, saved.input if needs[1] else None),
    turned=True,
)
