"""CPU kernels of sum, mean, prod, amax, amin and of sums over broadcast axes (reductions.cpp).

`reduced` and `gradient` serve the kernels of norms, variances and logsumexp too.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.cpu.device import in_format, without_broadcast
from ampkit.backends.cpu.native.arrays import (
    MIN_ELEMENTS,
    Function,
    HostArray,
    broadcast_to,
    empty,
    reshape_view,
    supported,
)
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.accumulate import sum_over
from ampkit.core.autograd.saved import Saved
from ampkit.ops.argument_checks import normalize_axes
from ampkit.ops.reduction import reductions as ops

_reduce, _gradient = Function("reduce", "aaaiidi"), Function("reduction_backward", "aaaai")
_product_gradient = Function("product_backward", "aaa")
# The numbers of `enum Term` in reductions.cpp.
SUM, ABSOLUTE, SQUARE, EQUAL, EXPONENTIAL, MAXIMUM, MINIMUM, LARGEST_ABSOLUTE, SMALLEST_ABSOLUTE, PRODUCT = range(10)
_LONG_ROW = 32  # elements; sums of that many are joined across planes in a time that does not count
_JOINED_BY = {LARGEST_ABSOLUTE: MAXIMUM, SMALLEST_ABSOLUTE: MINIMUM, MAXIMUM: MAXIMUM, MINIMUM: MINIMUM}  # else SUM


def fits(input: HostArray, *args: Any, **params: Any) -> bool:
    return supported(input) and input.size > 0


def axes_of(array: HostArray, dim: Any) -> tuple[int, ...]:
    return normalize_axes("", dim, array.ndim)


def count_over(array: HostArray, axes: tuple[int, ...]) -> int:
    return prod([array.shape[i] for i in axes])


class _Plan(NamedTuple):
    """How the kernel sees an array of one shape, and one reduction of it."""

    order: tuple[int, ...] | None  # the array's axes in the order of memory; None where they are in that order
    back: tuple[int, ...]  # the transposition that restores their order
    merged: tuple[int, int, int]  # the sizes that they merge to
    axis: int  # which of these is reduced; 0: the first and the last
    small: tuple[int, int, int]  # `merged` of the result
    ordered: tuple[int, ...]  # the result's shape, in the order of memory
    rest: tuple[int, ...]  # what is to be reduced then

    def in_order(self, array: HostArray) -> HostArray:
        return array if self.order is None else array.transpose(self.order)


@lru_cache(1024)
def _plan(shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...]) -> _Plan:
    order = sorted(range(len(shape)), key=lambda i: (shape[i] > 1, -abs(strides[i])))
    groups: list[list[int]] = []  # neighbours in memory that are all reduced, or all kept
    for i in order:
        if shape[i] > 1:
            if groups and (i in axes) == (groups[-1][0] in axes):
                groups[-1].append(i)
            else:
                groups.append([i])
    sizes = [prod([shape[i] for i in group]) for group in groups]
    reduced = [place for place, group in enumerate(groups) if group[0] in axes]
    last, at = len(groups) - 1, reduced[-1] if reduced else len(groups)
    if at == last:
        *before, n = sizes
        axis, merged = 2, (prod(before[:-1]), before[-1] if before else 1, n)
    else:
        axis, merged = 1, (prod(sizes[:at]), prod(sizes[at : at + 1]), prod(sizes[at + 1 :]))
    if reduced == [0, 2] and at == last and sizes[at] >= _LONG_ROW:
        axis = 0
    else:
        reduced = reduced[-1:]
    done = {i for place in reduced for i in groups[place]}
    rest = tuple([i for i in axes if i not in done and shape[i] > 1])
    a, b, c = merged
    return _Plan(
        order=None if order == sorted(order) else tuple(order),
        back=tuple(sorted(range(len(order)), key=order.__getitem__)),
        merged=merged,
        axis=axis,
        small=((1, b, 1), (a, 1, c), (a, b, 1))[axis],
        ordered=tuple([1 if i in axes and i not in rest else shape[i] for i in order]),
        rest=rest,
    )


def reduced(
    term: int,
    array: HostArray,
    axes: tuple[int, ...],
    dtype: DType,
    factor: float = 1.0,
    root: bool = False,
    shift: HostArray | None = None,
) -> HostArray:
    """factor * the sum of a term, or an extreme, over `axes`, which stay with length 1; root: the square root of it.

    shift: an array of the result's shape that the term has. -> an array with the order of memory of `array`. Raises
    UnsupportedError for an array whose axes cannot be merged to three.
    """
    if term != PRODUCT and 0 in array.strides and (once := without_broadcast(array)).size < array.size:
        kept = [1 if i in axes else n for i, n in enumerate(array.shape)]
        repeated = 1 if term in _JOINED_BY else prod([array.shape[i] // once.shape[i] for i in axes])
        shift = None if shift is None else np.broadcast_to(shift, kept)[tuple([slice(n) for n in once.shape])]
        return np.broadcast_to(reduced(term, once, axes, dtype, factor * repeated, root, shift), kept)
    plan = _plan(array.shape, array.strides, axes)
    x, rest = reshape_view(plan.in_order(array), plan.merged), plan.rest
    if shift is not None:
        shape = tuple([1 if i in axes and i not in rest else n for i, n in enumerate(array.shape)])
        shift = reshape_view(plan.in_order(broadcast_to(shift, shape)), plan.small)
    out = empty(plan.small, float32 if rest else dtype)
    _reduce(out, x, shift, term, plan.axis, 1.0 if rest else factor, root and not rest)
    out = out.reshape(plan.ordered)
    if plan.order is not None:
        out = out.transpose(plan.back)
    return reduced(_JOINED_BY.get(term, SUM), out, rest, dtype, factor, root) if rest else out


def gradient(
    term: int, x: HostArray, axes: tuple[int, ...], dy: HostArray, shift: HostArray | None, dtype: DType
) -> HostArray:
    """dy, broadcast to x, times the derivative of a term: x - shift for SQUARE, exp(x - shift), whether x equals shift,
    or the product of the others. -> an array with the order of memory of x. Raises UnsupportedError as `reduced`.
    """
    plan = _plan(x.shape, x.strides, axes)
    given = [x, dy] if shift is None else [x, dy, shift]
    views = [reshape_view(plan.in_order(broadcast_to(each, x.shape)), plan.merged) for each in given]
    dx = empty(plan.in_order(x).shape, dtype)
    views.insert(0, reshape_view(dx, plan.merged))
    if term == PRODUCT:
        _product_gradient(*[view.swapaxes(plan.axis, 2) for view in views])
    else:
        _gradient(*views, *[None] * (4 - len(views)), term)
    return dx.transpose(plan.back)


def as_result(found: Any, axes: tuple[int, ...], keepdim: bool, **saved: Any) -> Any:
    """What a kernel of a reduction returns: `found`, without the reduced axes unless `keepdim`; saved as `out`, too."""
    out = found if keepdim else found.squeeze(axes)
    if "out" in saved:
        saved["out"] = out
    return out, Saved(**saved)


def keep_reduced(array: HostArray, x: HostArray, axes: tuple[int, ...]) -> HostArray:
    """A result of a reduction of x over `axes`, or its gradient, in float32, with the axes."""
    return in_format(array, float32).reshape([1 if i in axes else n for i, n in enumerate(x.shape)])


# sum, mean and their gradients, which are views


@ops.sum.on("cpu", when=fits, min_elements=MIN_ELEMENTS)
def sum_cpu(input: HostArray, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    axes = axes_of(input, dim)
    return as_result(reduced(SUM, input, axes, dtype), axes, keepdim, shape=input.shape)


@ops.mean.on("cpu", when=fits, min_elements=MIN_ELEMENTS)
def mean_cpu(input: HostArray, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    axes = axes_of(input, dim)
    return as_result(reduced(SUM, input, axes, dtype, 1 / count_over(input, axes)), axes, keepdim, shape=input.shape)


@ops.sum.on_backward("cpu", when=lambda dy, saved, needs, dim, keepdim, dtype: needs[0] is not None)
def sum_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: Any, keepdim: bool, dtype: Any) -> HostArray:
    return _repeated(in_format(dy, needs[0]), saved.shape, dim, keepdim)


@ops.mean.on_backward("cpu", when=lambda dy, saved, needs, dim, keepdim, dtype: supported(dy))
def mean_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: Any, keepdim: bool, dtype: Any) -> HostArray:
    share = np.asarray(in_format(dy, float32) / np.float32(ops.count_reduced(saved.shape, dim)))
    return _repeated(in_format(share, needs[0]), saved.shape, dim, keepdim)


def _repeated(dy: HostArray, shape: tuple[int, ...], dim: Any, keepdim: bool) -> HostArray:
    return broadcast_to(ops.with_reduced(dy, shape, dim, keepdim) if dy.ndim else dy, shape)


def _sum_over_fits(gradient: HostArray, axes: tuple[int, ...]) -> bool:
    return bool(axes) and supported(gradient) and gradient.size > 0


@sum_over.on("cpu", when=_sum_over_fits, min_elements=MIN_ELEMENTS)
def sum_over_cpu(gradient: HostArray, axes: tuple[int, ...]) -> HostArray:
    return reduced(SUM, gradient, axes, float32)


def column_sums(array: HostArray, dtype: DType | None) -> HostArray | None:
    """The gradient of a bias: [..., N] summed over all axes but the last; None where `dtype` is None."""
    if dtype is None:
        return None
    return in_format(sum_over(array, tuple(range(array.ndim - 1))).reshape(-1), dtype)


# products


@ops.prod.on("cpu", when=fits, min_elements=MIN_ELEMENTS)
def prod_cpu(input: HostArray, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    return as_result(reduced(PRODUCT, input, axes_of(input, dim), dtype), dim, keepdim, input=input)


@ops.prod.on_backward("cpu", when=lambda dy, saved, needs, *args, **params: fits(saved.input) and supported(dy))
def prod_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: Any, keepdim: bool, dtype: Any) -> HostArray:
    x = saved.input
    return gradient(PRODUCT, x, axes_of(x, dim), ops.with_reduced(dy, x.shape, dim, keepdim), None, needs[0])


# extremes


def _register_extreme(op: Any, term: int) -> None:
    def forward(input: HostArray, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
        axes = axes_of(input, dim)
        found = reduced(term, input, axes, dtype)
        return as_result(found, axes, keepdim, input=input, out=found)

    def backward_fits(dy: HostArray, saved: Saved, needs: Any, dim: Any, keepdim: bool) -> bool:
        return supported(dy, saved.input, saved.out) and saved.input.size >= MIN_ELEMENTS

    def backward(dy: HostArray, saved: Saved, needs: Any, dim: Any, keepdim: bool) -> Any:
        x, axes = saved.input, axes_of(saved.input, dim)
        out, grad = (keep_reduced(each, x, axes) for each in (saved.out, dy))
        ties = reduced(EQUAL, x, axes, float32, shift=out)
        return gradient(EQUAL, x, axes, grad / ties, out, needs[0])

    op.on("cpu", when=fits, min_elements=MIN_ELEMENTS)(forward)
    op.on_backward("cpu", when=backward_fits)(backward)


_register_extreme(ops.amax, MAXIMUM)
_register_extreme(ops.amin, MINIMUM)
