"""Calls of reductions.cpp, a term of kernels/shared/reductions.h over any axes; the gradient of prod."""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.cpu.device import in_format, without_broadcast
from ampkit.backends.cpu.native.arrays import (
    Function,
    HostArray,
    broadcast_to,
    empty,
    reshape_view,
    supported,
)
from ampkit.backends.cpu.native.library import library
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.accumulate import sum_over
from ampkit.core.autograd.saved import Saved
from ampkit.ops.argument_checks import normalize_axes
from ampkit.ops.reduction.reductions import prod as prod_op
from ampkit.ops.reduction.reductions import with_reduced

_reduce, _product_gradient = Function("reduce", "paaaidi"), Function("product_backward", "aaa")
_LONG_ROW = 32  # elements; sums of that many are joined across planes in a time that does not count
_JOINED_BY = {  # the term that joins partial results; of others, Add
    "MaxAbs": "Maximum", "MinAbs": "Minimum", "Maximum": "Maximum", "Minimum": "Minimum", "Multiply": "Multiply"
}  # fmt: skip


def fits(input: HostArray, *args: Any, **params: Any) -> bool:
    return supported(input) and input.size > 0


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


@cache
def _address_of(term: str) -> int:
    """The address of the library's `reduction_<term>`."""
    return ctypes.addressof(ctypes.c_void_p.in_dll(library(), f"reduction_{term}"))


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
    term: str,
    array: HostArray,
    axes: tuple[int, ...],
    dtype: DType,
    divisor: float = 1.0,
    root: bool = False,
    center: HostArray | None = None,
) -> HostArray:
    """The joined terms of `array` over `axes`, which stay with length 1, divided by `divisor`; root: the square root.

    center: an array of the result's shape that the term has. -> an array with the order of memory of `array`. Raises
    UnsupportedError for an array whose axes cannot be merged to three.
    """
    if term != "Multiply" and 0 in array.strides and (once := without_broadcast(array)).size < array.size:
        kept = [1 if i in axes else n for i, n in enumerate(array.shape)]
        repeated = 1 if term in _JOINED_BY else prod([array.shape[i] // once.shape[i] for i in axes])
        center = None if center is None else np.broadcast_to(center, kept)[tuple([slice(n) for n in once.shape])]
        return np.broadcast_to(reduced(term, once, axes, dtype, divisor / repeated, root, center), kept)
    plan = _plan(array.shape, array.strides, axes)
    x, rest = reshape_view(plan.in_order(array), plan.merged), plan.rest
    if center is not None:
        shape = tuple([1 if i in axes and i not in rest else n for i, n in enumerate(array.shape)])
        center = reshape_view(plan.in_order(broadcast_to(center, shape)), plan.small)
    out = empty(plan.small, float32 if rest else dtype)
    _reduce(_address_of(term), out, x, center, plan.axis, 1.0 if rest else 1 / divisor, root and not rest)
    out = out.reshape(plan.ordered)
    if plan.order is not None:
        out = out.transpose(plan.back)
    return reduced(_JOINED_BY.get(term, "Add"), out, rest, dtype, divisor, root) if rest else out


# sums of gradients


def column_sums(array: HostArray, dtype: DType | None) -> HostArray | None:
    """The gradient of a bias: [..., N] summed over all axes but the last; None where `dtype` is None."""
    if dtype is None:
        return None
    return in_format(sum_over(array, tuple(range(array.ndim - 1))).reshape(-1), dtype)


# gradients of products


@prod_op.on_backward("cpu", when=lambda dy, saved, needs, *args, **params: fits(saved.input) and supported(dy))
def prod_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: Any, keepdim: bool, dtype: Any) -> HostArray:
    x = saved.input
    plan = _plan(x.shape, x.strides, normalize_axes("", dim, x.ndim))
    dx = empty(plan.in_order(x).shape, needs[0])
    given = x, broadcast_to(with_reduced(dy, x.shape, dim, keepdim), x.shape)
    views = [reshape_view(dx, plan.merged)]
    views += [reshape_view(plan.in_order(each), plan.merged) for each in given]
    _product_gradient(*[view.swapaxes(plan.axis, 2) for view in views])
    return dx.transpose(plan.back)
