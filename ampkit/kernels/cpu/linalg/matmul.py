"""CPU kernels of matrix products: one oneDNN primitive each."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import FLOATS
from ampkit.backends.cpu.onednn.gemm import PackedKey, as_rows, gemm, in_compute_dtype, is_profitable
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.cpu.reduction.reductions import column_sums
from ampkit.ops.linalg import matmul


def _gradient(
    a: HostArray, b: HostArray, dtype: DType, key: PackedKey | None = None, buffer: HostArray | None = None
) -> HostArray:
    return gemm(a, b, dtype, None, key, buffer if buffer is not None and buffer.dtype == dtype else None)


def _transposed(array: HostArray) -> HostArray:
    return array.swapaxes(-1, -2) if array.ndim > 1 else array


# linear


@matmul.linear.on("cpu", when=lambda input, weight, bias: is_profitable(input, weight.T), wants_cache=True)
def linear_cpu(input: HostArray, weight: HostArray, bias: HostArray | None, *, dtype: DType, versions: Any) -> Any:
    return gemm(input, weight.T, dtype, bias, PackedKey(versions[1], weight)), Saved(input=input, weight=weight)


def _linear_backward_is_profitable(dy: HostArray, saved: Saved, needs: Any) -> bool:
    if dy.ndim < 2:
        return False
    return (
        is_profitable(dy, saved.weight)
        if needs[0]
        else bool(needs[1]) and is_profitable(as_rows(dy).T, as_rows(saved.input))
    )


@matmul.linear.on_backward("cpu", when=_linear_backward_is_profitable, wants_cache=True)
def linear_backward_cpu(dy: HostArray, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
    dy = in_compute_dtype(dy)
    dx = _gradient(dy, saved.weight, needs[0], PackedKey(versions[1], saved.weight)) if needs[0] else None
    dw = _gradient(as_rows(dy).T, as_rows(saved.input), needs[1], None, grad_buffers[1]) if needs[1] else None
    return dx, dw, column_sums(dy, needs[2])


# matmul, mm, tensordot, bmm, mv, outer: one of the operands may be a vector


def _row(array: HostArray) -> HostArray:
    return array if array.ndim > 1 else array[None]


def _column(array: HostArray) -> HostArray:
    return array if array.ndim > 1 else array[:, None]


def _for_first(dy: HostArray, other: HostArray) -> tuple[HostArray, HostArray, bool]:
    """Operands (dy, other^T) whose product is the gradient of the first operand, and whether that is a vector."""
    vector = dy.ndim < other.ndim
    grad = dy[..., None] if other.ndim == 1 else dy[..., None, :] if vector else dy
    return grad, _transposed(_column(other)), vector


def _for_second(dy: HostArray, saved: Saved) -> tuple[HostArray, HostArray, bool]:
    """Operands (input^T, dy) whose product is the gradient of the second operand, and whether that is a vector."""
    input = saved.input
    vector = dy.ndim < input.ndim
    grad = dy[..., None] if vector else dy[..., None, :] if input.ndim == 1 else dy
    a = _row(input)
    if getattr(saved, "shared", False):
        a, grad = as_rows(a), as_rows(grad)
    return _transposed(a), grad, vector


def _register_product(op: Any, second: str) -> None:
    def forward_is_profitable(input: HostArray, other: HostArray) -> bool:
        if input.ndim > 1 < other.ndim:
            return is_profitable(input, other)
        # In float32 a product with a vector is bound by memory, and NumPy is as fast.
        several = input.ndim > 0 < other.ndim and input.ndim + other.ndim > 2 and input.dtype != float32
        return several and is_profitable(_row(input), _column(other))

    def forward(input: HostArray, other: HostArray, *, dtype: DType, versions: Any) -> Any:
        out = gemm(_row(input), _column(other), dtype, None, PackedKey(versions[1], other))
        kept = {"shared": input.ndim > 2 >= other.ndim} if op is matmul.matmul else {}
        vectors = input.shape[-2:-1] if other.ndim == 1 else other.shape[-1:]
        out = out if min(input.ndim, other.ndim) > 1 else out.reshape(*out.shape[:-2], *vectors)
        return out, Saved(input=input, **{second: other}, **kept)

    def backward_is_profitable(dy: HostArray, saved: Saved, needs: Any) -> bool:
        a, b, vector = _for_first(dy, saved.__dict__[second]) if needs[0] else _for_second(dy, saved)
        return is_profitable(a, b) and (
            dy.dtype != float32 or not (vector or 1 in (a.shape[-1], a.shape[-2], b.shape[-1]))
        )

    def backward(dy: HostArray, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
        dy, da, db = in_compute_dtype(dy), None, None
        if needs[0]:
            other = saved.__dict__[second]
            a, b, vector = _for_first(dy, other)
            da = _gradient(a, b, needs[0], PackedKey(versions[1], other))
            da = da.reshape(*da.shape[:-2], -1) if vector else da
        if needs[1]:
            a, b, vector = _for_second(dy, saved)
            db = _gradient(a, b, needs[1], None, grad_buffers[1])
            db = db.reshape(db.shape[:-1]) if vector else db
        return da, db

    op.on("cpu", when=forward_is_profitable, wants_cache=True)(forward)
    op.on_backward("cpu", when=backward_is_profitable, wants_cache=True)(backward)


for _op, _second in (
    (matmul.matmul, "other"),
    (matmul.mm, "mat2"),
    (matmul.tensordot_, "other"),
    (matmul.bmm, "mat2"),
    (matmul.mv, "vec"),
):
    _register_product(_op, _second)


@matmul.outer.on("cpu", when=lambda input, vec2: is_profitable(_column(input), _row(vec2)))
def outer_cpu(input: HostArray, vec2: HostArray, *, dtype: DType) -> Any:
    return gemm(_column(input), _row(vec2), dtype), Saved(input=input, vec2=vec2)


def _outer_back_fits(dy: HostArray, saved: Saved, needs: Any) -> bool:
    return all(dy.dtype == kept.dtype for kept in vars(saved).values()) and is_profitable(dy, dy[:1].T)


@matmul.outer.on_backward("cpu", when=_outer_back_fits)
def outer_backward_cpu(dy: HostArray, saved: Saved, needs: Any) -> Any:
    da = _gradient(dy, _column(saved.vec2), needs[0]).reshape(-1) if needs[0] else None
    return da, _gradient(_row(saved.input), dy, needs[1]).reshape(-1) if needs[1] else None


# addmm, baddbmm: a product and what is added to it


def _register_addmm(op: Any, first: str, second: str) -> None:
    def forward_is_profitable(input: Any, a: HostArray, b: HostArray, **params: Any) -> bool:
        return getattr(input, "dtype", None) in FLOATS and is_profitable(a, b)

    def forward(
        input: HostArray, a: HostArray, b: HostArray, *, beta: Any, alpha: Any, dtype: DType, versions: Any
    ) -> Any:
        key, saved = PackedKey(versions[2], b), Saved(**{first: a, second: b})
        if beta == alpha == 1 and input.shape == b.shape[-1:] and input.dtype == a.dtype:
            return gemm(a, b, dtype, input, key), saved
        out = gemm(a, b, float32, None, key)
        if alpha != 1:
            out *= np.float32(alpha)
        if beta != 0:
            more = in_format(input, float32)
            out += more if beta == 1 else more * np.float32(beta)
        return in_format(out, dtype), saved

    def scaled(a: HostArray, b: HostArray, dtype: Any, alpha: Any, buffer: Any = None) -> Any:
        if alpha == 1:
            return _gradient(a, b, dtype, None, buffer)
        found = _gradient(a, b, float32)
        return in_format(np.multiply(found, np.float32(alpha), out=found), dtype)

    def backward_is_profitable(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
        if needs[1]:
            return is_profitable(dy, _transposed(saved.__dict__[second]))
        return bool(needs[2]) and is_profitable(_transposed(saved.__dict__[first]), dy)

    def backward(
        dy: HostArray, saved: Saved, needs: Any, beta: Any, alpha: Any, versions: Any, grad_buffers: Any
    ) -> Any:
        grad, da, db, more = in_compute_dtype(dy), None, None, None
        if needs[0]:
            more = dy if beta == 1 else in_format(dy, float32) * np.float32(beta)
        if needs[1]:
            da = scaled(grad, _transposed(saved.__dict__[second]), needs[1], alpha)
        if needs[2]:
            db = scaled(_transposed(saved.__dict__[first]), grad, needs[2], alpha, grad_buffers[2])
        return more, da, db

    op.on("cpu", when=forward_is_profitable, wants_cache=True)(forward)
    op.on_backward("cpu", when=backward_is_profitable, wants_cache=True)(backward)


_register_addmm(matmul.addmm, "mat1", "mat2")
_register_addmm(matmul.baddbmm, "batch1", "batch2")
