"""Bodies of the products: one call of oneDNN for each."""

from __future__ import annotations

from typing import Any

from ...core.dtypes import DType
from ...core.saved import Saved
from ...ops import products
from .gemm import Kept, column_sums, computed, fits, folded, product
from .onednn import HostArray

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


@products.linear.on("cpu", when=lambda input, weight, bias: fits(input, weight.T), keeps=True)
def linear_cpu(input: HostArray, weight: HostArray, bias: HostArray | None, *, dtype: DType, versions: Any) -> Any:
    out = product(input, weight.T, dtype, bias, Kept(versions[1], weight))
    return NotImplemented if out is None else (out, Saved(input=input, weight=weight))


def _worth(dy: HostArray, saved: Saved, needs: Any) -> bool:
    if dy.ndim < 2:
        return False
    return fits(dy, saved.weight) if needs[0] else bool(needs[1]) and fits(folded(dy).T, folded(saved.input))


@products.linear.backward_primitive.on(  # type: ignore[union-attr,untyped-decorator]
    "cpu", when=_worth, keeps=True
)
def linear_backward_cpu(dy: HostArray, saved: Saved, needs: Any, versions: Any, homes: Any) -> Any:
    dy = computed(dy)
    dx = _gradient(dy, saved.weight, needs[0], Kept(versions[1], saved.weight)) if needs[0] else None
    dw = _gradient(folded(dy).T, folded(saved.input), needs[1], None, homes[1]) if needs[1] else None
    return _answer(dx, dw, column_sums(dy, needs[2]))


# matmul, mm, bmm: two operands, batched alike, or the second for all of a batch


def _alike(a: HostArray, b: HostArray) -> bool:
    return fits(a, b) and (b.ndim == 2 or a.shape[:-2] == b.shape[:-2])


def _two(op: Any, second: str) -> None:
    def forward(input: HostArray, other: HostArray, *, dtype: DType, versions: Any) -> Any:
        out = product(input, other, dtype, None, Kept(versions[1], other))
        kept = {"shared": input.ndim > 2 and other.ndim == 2} if op is products.matmul else {}
        return NotImplemented if out is None else (out, Saved(input=input, **{second: other}, **kept))

    def worth(dy: HostArray, saved: Saved, needs: Any) -> bool:
        return _alike(dy, _turned(saved.__dict__[second])) if needs[0] else _alike(_turned(saved.input), dy)

    def backward(dy: HostArray, saved: Saved, needs: Any, versions: Any, homes: Any) -> Any:
        dy, da = computed(dy), None
        if needs[0]:
            other = saved.__dict__[second]
            da = _gradient(dy, _turned(other), needs[0], Kept(versions[1], other))
        if not needs[1]:
            return _answer(da, None)
        a, slope = (folded(saved.input), folded(dy)) if getattr(saved, "shared", False) else (saved.input, dy)
        return _answer(da, _gradient(_turned(a), slope, needs[1], None, homes[1]))

    op.on("cpu", when=_alike, keeps=True)(forward)
    op.backward_primitive.on("cpu", when=worth, keeps=True)(backward)


for _op, _second in ((products.matmul, "other"), (products.mm, "mat2"), (products.bmm, "mat2")):
    _two(_op, _second)
