"""CPU kernels of counting by exponent and of lost updates (exponents.cpp), in one pass over stored arrays."""

from __future__ import annotations

import numpy as np

from ampkit.amp.exponents import LIMITS, count_exponents, count_lost_updates
from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.native.arrays import FLOATS, Function, HostArray, available, merge_axes
from ampkit.backends.elementwise.layout import memory_order
from ampkit.base.dtypes import float32, float64

_count_exponents = Function("count_exponents", "app")
_count_lost_updates = Function("count_lost_updates", "pppi")


def _in_three_axes(values: HostArray) -> HostArray | None:
    """`values` as a view of at most three axes, in any order; None where that takes a copy."""
    if values.flags.c_contiguous:
        return values.reshape(-1)
    order = memory_order(values.shape, ((values.shape, values.strides, values.dtype),))
    ordered = values if order is None else values.transpose(order)
    if ordered.ndim <= 3:
        return ordered
    flat = merge_axes(ordered, (ordered.size,))
    return merge_axes(ordered, (ordered.shape[0], ordered.shape[1], -1)) if flat is None else flat


def _countable(values: HostArray, counts: HostArray) -> bool:
    kinds = values.dtype in FLOATS or values.dtype == float64
    return type(values) is np.ndarray and kinds and values.size > 0 and values.flags.aligned and available()


@count_exponents.on("cpu", when=_countable)
def count_exponents_cpu(values: HostArray, counts: HostArray) -> None:
    view = _in_three_axes(values)
    values = np.ascontiguousarray(values) if view is None else view
    _count_exponents(values, address(LIMITS), address(counts))


def _flat(before: HostArray, after: HostArray, counts: HostArray) -> bool:
    both = before.dtype == after.dtype == float32 and before.ndim == after.ndim == 1
    return both and type(before) is np.ndarray and available()


@count_lost_updates.on("cpu", when=_flat)
def count_lost_updates_cpu(before: HostArray, after: HostArray, counts: HostArray) -> None:
    before, after = np.ascontiguousarray(before), np.ascontiguousarray(after)
    _count_lost_updates(address(before), address(after), address(counts), before.size)
