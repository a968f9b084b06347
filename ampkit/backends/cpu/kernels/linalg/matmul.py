"""Kernels of the products: one call of oneDNN for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn.gemm import Kept, column_sums, computed, fits, folded, product
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.backends.cpu.onednn.reorder import FORMATS
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.linalg import matmul

_MISSING = object()  # a product that oneDNN has no fast code for


def _answer(*gradients: Any) -> Any:
    """The gradients; NotImplemented, which leaves them to the reference, where one is missing."""
    return NotImplemented if any(each is _MISSING for each in gradients) else gradients


def _gradient(
    a: HostArray, b: HostArray, dtype: DType | None, kept: Kept | None = None, home: HostArray | None = None
) -> Any:
    if dtype is None:
        return None
    found = product(a, b, dtype, None, kept, home if home is not None and home.dtype == dtype else None)
    return _MISSING if found is None else found


def _turned(array: HostArray) -> HostArray:
    return array.swapaxes(-1, -2) if array.ndim > 1 else array


# linear


@matmul.linear.on("cpu", when=lambda input, weight, bias: fits(input, weight.T), wants_cache=True)
def linear_cpu(input: HostArray, weight: HostArray, bias: HostArray | None, *, dtype: DType, versions: Any) -> Any:
    out = product(input, weight.T, dtype, bias, Kept(versions[1], weight))
    return NotImplemented if out is None else (out, Saved(input=input, weight=weight))


def _worth(dy: HostArray, saved: Saved, needs: Any) -> bool:
    if dy.ndim < 2:
        return False
    return fits(dy, saved.weight) if needs[0] else bool(needs[1]) and fits(folded(dy).T, folded(saved.input))


@matmul.linear.on_backward("cpu", when=_worth, wants_cache=True)
def linear_backward_cpu(dy: HostArray, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
    dy = computed(dy)
    dx = _gradient(dy, saved.weight, needs[0], Kept(versions[1], saved.weight)) if needs[0] else None
    dw = _gradient(folded(dy).T, folded(saved.input), needs[1], None, grad_buffers[1]) if needs[1] else None
    return _answer(dx, dw, column_sums(dy, needs[2]))


# matmul, mm, tensordot, bmm, mv, outer: two operands, of which one may be a vector


def _row(array: HostArray) -> HostArray:
    return array if array.ndim > 1 else array[None]


def _column(array: HostArray) -> HostArray:
    return array if array.ndim > 1 else array[:, None]


def _for_first(dy: HostArray, other: HostArray) -> tuple[HostArray, HostArray, bool]:
    """Whose product is the gradient of the first operand, and whether that is a vector."""
    vector = dy.ndim < other.ndim
    slope = dy[..., None] if other.ndim == 1 else dy[..., None, :] if vector else dy
    return slope, _turned(_column(other)), vector


def _for_second(dy: HostArray, saved: Saved) -> tuple[HostArray, HostArray, bool]:
    """Whose product is the gradient of the second operand, and whether that is a vector."""
    input = saved.input
    vector = dy.ndim < input.ndim
    slope = dy[..., None] if vector else dy[..., None, :] if input.ndim == 1 else dy
    a = _row(input)
    if getattr(saved, "shared", False):
        a, slope = folded(a), folded(slope)
    return _turned(a), slope, vector


def _two(op: Any, second: str) -> None:
    def worth_it(input: HostArray, other: HostArray) -> bool:
        if input.ndim > 1 < other.ndim:
            return fits(input, other)
        # In float32 a vector costs memory alone, which NumPy reads as fast.
        several = input.ndim > 0 < other.ndim and input.ndim + other.ndim > 2 and input.dtype != float32
        return several and fits(_row(input), _column(other))

    def forward(input: HostArray, other: HostArray, *, dtype: DType, versions: Any) -> Any:
        out = product(_row(input), _column(other), dtype, None, Kept(versions[1], other))
        kept = {"shared": input.ndim > 2 >= other.ndim} if op is matmul.matmul else {}
        if out is None:
            return NotImplemented
        vectors = input.shape[-2:-1] if other.ndim == 1 else other.shape[-1:]
        out = out if min(input.ndim, other.ndim) > 1 else out.reshape(*out.shape[:-2], *vectors)
        return out, Saved(input=input, **{second: other}, **kept)

    def worth(dy: HostArray, saved: Saved, needs: Any) -> bool:
        a, b, vector = _for_first(dy, saved.__dict__[second]) if needs[0] else _for_second(dy, saved)
        return fits(a, b) and (dy.dtype != float32 or not (vector or 1 in (a.shape[-1], a.shape[-2], b.shape[-1])))

    def backward(dy: HostArray, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
        dy, da, db = computed(dy), None, None
        if needs[0]:
            other = saved.__dict__[second]
            a, b, vector = _for_first(dy, other)
            da = _gradient(a, b, needs[0], Kept(versions[1], other))
            da = da.reshape(*da.shape[:-2], -1) if vector and da is not _MISSING else da
        if needs[1]:
            a, b, vector = _for_second(dy, saved)
            db = _gradient(a, b, needs[1], None, grad_buffers[1])
            db = db.reshape(db.shape[:-1]) if vector and db is not _MISSING else db
        return _answer(da, db)

    op.on("cpu", when=worth_it, wants_cache=True)(forward)
    op.on_backward("cpu", when=worth, wants_cache=True)(backward)


for _op, _second in (
    (matmul.matmul, "other"),
    (matmul.mm, "mat2"),
    (matmul.tensordot_, "other"),
    (matmul.bmm, "mat2"),
    (matmul.mv, "vec"),
):
    _two(_op, _second)


@matmul.outer.on("cpu", when=lambda input, vec2: fits(_column(input), _row(vec2)))
def outer_cpu(input: HostArray, vec2: HostArray, *, dtype: DType) -> Any:
    out = product(_column(input), _row(vec2), dtype)
    return NotImplemented if out is None else (out, Saved(input=input, vec2=vec2))


def _outer_back_fits(dy: HostArray, saved: Saved, needs: Any) -> bool:
    return all(dy.dtype == kept.dtype for kept in vars(saved).values()) and fits(dy, dy[:1].T)


@matmul.outer.on_backward("cpu", when=_outer_back_fits)
def outer_backward_cpu(dy: HostArray, saved: Saved, needs: Any) -> Any:
    da = _gradient(dy, _column(saved.vec2), needs[0]) if needs[0] else None
    db = _gradient(_row(saved.input), dy, needs[1]) if needs[1] else None
    return _answer(*[one if one is None or one is _MISSING else one.reshape(-1) for one in (da, db)])


# addmm, baddbmm: a product and what is added to it


def _added(op: Any, first: str, second: str) -> None:
    def forward(
        input: HostArray, a: HostArray, b: HostArray, *, beta: Any, alpha: Any, dtype: DType, versions: Any
    ) -> Any:
        kept, saved = Kept(versions[2], b), Saved(**{first: a, second: b})
        if beta == alpha == 1 and input.shape == b.shape[-1:] and input.dtype == a.dtype:
            out = product(a, b, dtype, input, kept)
            return NotImplemented if out is None else (out, saved)
        out = product(a, b, float32, None, kept)
        if out is None or input.dtype not in FORMATS:
            return NotImplemented
        if alpha != 1:
            out *= np.float32(alpha)
        if beta != 0:
            more = in_format(input, float32)
            out += more if beta == 1 else more * np.float32(beta)
        return in_format(out, dtype), saved

    def scaled(a: HostArray, b: HostArray, dtype: Any, alpha: Any, home: Any = None) -> Any:
        if alpha == 1:
            return _gradient(a, b, dtype, None, home)
        found = _gradient(a, b, float32)
        return found if found is _MISSING else in_format(np.multiply(found, np.float32(alpha), out=found), dtype)

    def worth(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
        if needs[1]:
            return fits(dy, _turned(saved.__dict__[second]))
        return bool(needs[2]) and fits(_turned(saved.__dict__[first]), dy)

    def backward(
        dy: HostArray, saved: Saved, needs: Any, beta: Any, alpha: Any, versions: Any, grad_buffers: Any
    ) -> Any:
        slope, da, db, more = computed(dy), None, None, None
        if needs[0]:
            more = dy if beta == 1 else in_format(dy, float32) * np.float32(beta)
        if needs[1]:
            da = scaled(slope, _turned(saved.__dict__[second]), needs[1], alpha)
        if needs[2]:
            db = scaled(_turned(saved.__dict__[first]), slope, needs[2], alpha, grad_buffers[2])
        return _answer(more, da, db)

    op.on("cpu", when=lambda input, a, b, **params: fits(a, b), wants_cache=True)(forward)
    op.on_backward("cpu", when=worth, wants_cache=True)(backward)


_added(matmul.addmm, "mat1", "mat2")
_added(matmul.baddbmm, "batch1", "batch2")
