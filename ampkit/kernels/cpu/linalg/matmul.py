"""CPU kernels of matrix products: one oneDNN primitive each."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import FLOATS
from ampkit.backends.cpu.onednn.gemm import as_rows, gemm, in_compute_dtype, is_profitable, matmul_into
from ampkit.backends.cpu.onednn.library import has_fast_matmul
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.core.dispatch import Sum
from ampkit.kernels.cpu.reduction.reductions import column_sums
from ampkit.kernels.shared.linalg import (
    Multiplier,
    as_column,
    as_row,
    left_operands,
    register_outer_backward,
    register_products,
    right_operands,
)
from ampkit.ops.linalg import matmul


def _weight_gradients(dy: HostArray, saved: Saved, needs: Any, grad_buffers: Any) -> Any:
    dw, buffer = None, grad_buffers[1]
    if type(buffer) is Sum:
        dw = _added_to(buffer.array, as_rows(dy).T, as_rows(saved.input))
    elif needs[1]:
        dw = gemm(as_rows(dy).T, as_rows(saved.input), needs[1], buffer)
    return dw, column_sums(dy, needs[2])


def _added_to(total: HostArray, a: HostArray, b: HostArray) -> HostArray:
    # total [M, N] float32 with a @ b added, in the same pass where oneDNN multiplies
    if not (a.dtype == b.dtype and has_fast_matmul(a.dtype) and matmul_into(a, b, total, accumulate=True)):
        total += gemm(a, b, float32)
    return total


def _added(input: HostArray, a: HostArray, b: HostArray, beta: Any, alpha: Any, dtype: DType, key: Any) -> HostArray:
    if beta == alpha == 1 and input.shape == b.shape[-1:] and input.dtype == a.dtype:
        return gemm(a, b, dtype, None, input, key)
    out = gemm(a, b, float32, key=key)
    if alpha != 1:
        out *= np.float32(alpha)
    if beta != 0:
        more = in_format(input, float32)
        out += more if beta == 1 else more * np.float32(beta)
    return in_format(out, dtype)


def _scaled(a: HostArray, b: HostArray, dtype: DType, buffer: HostArray | None, alpha: Any) -> HostArray:
    if alpha == 1:
        return gemm(a, b, dtype, buffer)
    found = gemm(a, b, float32)
    return in_format(np.multiply(found, np.float32(alpha), out=found), dtype)


def _product_is_profitable(input: HostArray, other: HostArray) -> bool:
    if input.ndim > 1 < other.ndim:
        return is_profitable(input, other)
    # In float32 a product with a vector is bound by memory, and NumPy is as fast.
    several = input.ndim > 0 < other.ndim and input.ndim + other.ndim > 2 and input.dtype != float32
    return several and is_profitable(as_row(input), as_column(other))


def _gradients_fit(op: Any, first: str, second: str, at: int) -> Any:
    """A predicate: whether the first gradient that is wanted is profitable."""

    def linear(dy: HostArray, saved: Saved, needs: Any) -> bool:
        if dy.ndim < 2:
            return False
        if needs[0]:
            return is_profitable(dy, saved.weight)
        return bool(needs[1]) and is_profitable(as_rows(dy).T, as_rows(saved.input))

    def added(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
        if needs[1]:
            return is_profitable(dy, saved.__dict__[second].swapaxes(-1, -2))
        return bool(needs[2]) and is_profitable(saved.__dict__[first].swapaxes(-1, -2), dy)

    def product(dy: HostArray, saved: Saved, needs: Any) -> bool:
        if needs[0]:
            a, b, vector = left_operands(dy, saved.__dict__[second])
        else:
            a, b, vector = right_operands(dy, saved.input, getattr(saved, "shared", False))
        return is_profitable(a, b) and (
            dy.dtype != float32 or not (vector or 1 in (a.shape[-1], a.shape[-2], b.shape[-1]))
        )

    return linear if op is matmul.linear else added if at else product


register_products(
    Multiplier(
        "cpu",
        product=gemm,
        added=_added,
        scaled=_scaled,
        weight_gradients=_weight_gradients,
        prepared=in_compute_dtype,
        linear_fits=lambda input, weight, bias: is_profitable(input, weight.T),
        product_fits=_product_is_profitable,
        added_fits=lambda input, a, b, **params: getattr(input, "dtype", None) in FLOATS and is_profitable(a, b),
        gradients_fit=_gradients_fit,
        caches=True,
    )
)


# outer


@matmul.outer.on("cpu", when=lambda input, vec2: is_profitable(as_column(input), as_row(vec2)))
def outer_cpu(input: HostArray, vec2: HostArray, *, dtype: DType) -> Any:
    return gemm(as_column(input), as_row(vec2), dtype), Saved(input=input, vec2=vec2)


def _outer_back_fits(dy: HostArray, saved: Saved, needs: Any) -> bool:
    return all(dy.dtype == kept.dtype for kept in vars(saved).values()) and is_profitable(dy, dy[:1].T)


register_outer_backward("cpu", gemm, _outer_back_fits, turned=False)
