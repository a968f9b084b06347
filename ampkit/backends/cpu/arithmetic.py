"""Bodies of sums, differences and products of two arrays that lie alike."""

from __future__ import annotations

from typing import Any

from ...core.dtypes import DType
from ...core.saved import Saved
from ...ops import arithmetic
from . import binary
from .onednn import HostArray


def _sum(op: Any, kind: str) -> None:
    def worth(input: Any, other: Any, alpha: Any) -> bool:
        return _large(input, other) and alpha == 1

    def forward(input: HostArray, other: HostArray, alpha: Any, *, dtype: DType) -> HostArray:
        return binary.both(kind, input, other)

    op.on("cpu", when=worth)(forward)


def _large(a: Any, b: Any) -> bool:
    return hasattr(a, "strides") and hasattr(b, "strides") and binary.fits(a, b)


_sum(arithmetic.add, "add")
_sum(arithmetic.sub, "sub")


@arithmetic.mul.on("cpu", when=_large)
def mul_cpu(input: HostArray, other: HostArray, *, dtype: DType) -> Any:
    return binary.both("mul", input, other), Saved(input=input, other=other)


def _slopes_fit(dy: HostArray, saved: Saved, needs: Any) -> bool:
    pairs = [
        (need, getattr(saved, name)) for need, name in zip(needs, ("other", "input"), strict=True) if need is not None
    ]
    return all(need == dy.dtype and _large(dy, factor) for need, factor in pairs)


@arithmetic.mul.backward_primitive.on("cpu", when=_slopes_fit)  # type: ignore[union-attr,untyped-decorator]
def mul_backward_cpu(dy: HostArray, saved: Saved, needs: Any) -> Any:
    return tuple(
        None if need is None else binary.both("mul", dy, getattr(saved, name))
        for need, name in zip(needs, ("other", "input"), strict=True)
    )
