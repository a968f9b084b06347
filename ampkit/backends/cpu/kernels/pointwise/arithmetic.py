"""CPU kernels of sums, differences and products of arrays of one layout, or with a broadcast second operand."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.onednn import binary, eltwise
from ampkit.backends.cpu.onednn.primitive import MIN_ELEMENTS, HostArray
from ampkit.backends.cpu.onednn.reorder import FORMATS
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise import arithmetic


def _large(a: Any, b: Any) -> bool:
    return hasattr(a, "strides") and hasattr(b, "strides") and (binary.fit_widened(a, b) or _spreads(a, b))


def _spreads(a: HostArray, b: HostArray) -> bool:
    """Whether `b` is broadcast along some axes of `a`."""
    if not 1 < b.size < a.size or b.ndim > a.ndim or not {a.dtype, b.dtype} <= FORMATS:
        return False
    fit = all(m in (1, n) for n, m in zip(a.shape[::-1], b.shape[::-1], strict=False))
    return fit and eltwise.fits(a) and eltwise.computes(a.dtype)


def _both(kind: str, a: HostArray, b: HostArray) -> HostArray | None:
    if a.shape == b.shape:
        return binary.both(kind, a, b)
    return binary.spread(kind, a, b) if a.dtype in (b.dtype, float32) else None


def _sum(op: Any, kind: str) -> None:
    def forward(input: HostArray, other: HostArray, alpha: Any, *, dtype: DType) -> Any:
        out = _both(kind, input, other)
        return NotImplemented if out is None else out

    op.on("cpu", when=lambda input, other, alpha: alpha == 1 and _large(input, other), min_elements=MIN_ELEMENTS)(
        forward
    )


_sum(arithmetic.add, "add")
_sum(arithmetic.sub, "sub")


@arithmetic.add.on_backward("cpu", when=lambda dy, saved, needs, alpha: alpha == 1)
def add_backward_cpu(dy: HostArray, saved: Saved, needs: Any, alpha: Any) -> Any:
    """The reference, which would have dy widened, to give it back as it came."""
    return dy, dy


@arithmetic.mul.on("cpu", when=_large, min_elements=MIN_ELEMENTS)
def mul_cpu(input: HostArray, other: HostArray, *, dtype: DType) -> Any:
    out = _both("mul", input, other)
    return NotImplemented if out is None else (out, Saved(input=input, other=other))


def _factors(saved: Saved, needs: Any) -> list[Any]:
    # Per input, what the gradient is multiplied with for its own.
    return [need and getattr(saved, name) for need, name in zip(needs, ("other", "input"), strict=True)]


def _slopes_fit(dy: HostArray, saved: Saved, needs: Any) -> bool:
    factors = [factor for factor in _factors(saved, needs) if factor is not None]
    return all(need in (None, dy.dtype) for need in needs) and all(_large(dy, factor) for factor in factors)


@arithmetic.mul.on_backward("cpu", when=_slopes_fit, min_elements=MIN_ELEMENTS)
def mul_backward_cpu(dy: HostArray, saved: Saved, needs: Any) -> Any:
    gradients = [None if factor is None else _both("mul", dy, factor) for factor in _factors(saved, needs)]
    missing = any(g is None and need is not None for g, need in zip(gradients, needs, strict=True))
    return NotImplemented if missing else tuple(gradients)
