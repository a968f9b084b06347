"""CPU kernels of cumulative sums, products, extremes and logarithms of sums, along any axis (cumulative.cpp)."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, Function, HostArray, empty, merge_axes, need_view, supported
from ampkit.base.dtypes import DType, float32, int64
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.reduction import register_cumsum
from ampkit.ops.reduction import cumulative as ops

from .sorting import register_values_backward

_scan, _product_backward = Function("cumulative", "aaii"), Function("cumulative_product_backward", "aaa")
_extreme = Function("cumulative_extreme", "aaai")
_logsumexp, _logsumexp_backward = (
    Function("cumulative_logsumexp", "aa"),
    Function("cumulative_logsumexp_backward", "aaaa"),
)


def _along(array: HostArray, dim: int) -> HostArray | None:
    """A view [before, n, behind] of `array` with the axis `dim` in the middle."""
    at = dim % array.ndim
    return merge_axes(array, (prod(array.shape[:at]), array.shape[at], prod(array.shape[at + 1 :])))


def _fits(input: HostArray, dim: int, *args: Any, **params: Any) -> bool:
    return supported(input) and input.ndim > 0 and input.size > 0 and _along(input, dim) is not None


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, dim: int, dtype: Any = None) -> bool:
    arrays = [array for name, array in vars(saved).items() if name in ("input", "sums")]
    return dy.size >= MIN_ELEMENTS and all(_fits(array, dim) for array in (dy, *arrays))


def _run(function: Function, dim: int, *arrays: HostArray, flags: tuple[bool, ...] = ()) -> HostArray:
    """Call `function` with views of the arrays along `dim`. -> the first of them, the result."""
    function(*[need_view(_along(each, dim)) for each in arrays], *flags)
    return arrays[0]


def _summed(x: HostArray, dim: int, dtype: DType, reverse: bool) -> HostArray:
    return _run(_scan, dim, empty(x.shape, dtype), x, flags=(False, reverse))


register_cumsum("cpu", _summed, _fits, MIN_ELEMENTS)


@ops.cumprod.on("cpu", when=_fits, min_elements=MIN_ELEMENTS)
def cumprod_cpu(input: HostArray, dim: int, dtype: DType) -> Any:
    return _run(_scan, dim, empty(input.shape, dtype), input, flags=(True, False)), Saved(input=input)


@ops.cumprod.on_backward("cpu", when=_backward_fits)
def cumprod_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: int, dtype: Any) -> HostArray:
    return _run(_product_backward, dim, empty(dy.shape, needs[0]), dy, saved.input)


@ops.logcumsumexp.on("cpu", when=_fits, min_elements=MIN_ELEMENTS)
def logcumsumexp_cpu(input: HostArray, dim: int, *, dtype: DType) -> Any:
    sums = _run(_logsumexp, dim, empty(input.shape, float32), input)
    return sums.astype(dtype), Saved(input=input, sums=sums)


@ops.logcumsumexp.on_backward("cpu", when=_backward_fits)
def logcumsumexp_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: int) -> HostArray:
    return _run(_logsumexp_backward, dim, empty(dy.shape, needs[0]), dy, saved.input, saved.sums)


def _register_extreme(op: Any, smallest: bool) -> None:
    def forward(input: HostArray, dim: int, *, dtype: DType) -> Any:
        values, places = empty(input.shape, dtype), empty(input.shape, int64)
        _run(_extreme, dim, values, places, input, flags=(smallest,))
        return (values, places), Saved(at=places, shape=input.shape)

    op.on("cpu", when=_fits, min_elements=MIN_ELEMENTS)(forward)


_register_extreme(ops.cummax_, smallest=False)
_register_extreme(ops.cummin_, smallest=True)
register_values_backward(ops.cummax_, ops.cummin_)
