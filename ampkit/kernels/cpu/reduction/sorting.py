"""CPU kernels of sort, topk, argmax, argmin, max and min along an axis (sorting.cpp)."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.backends.cpu.native.arrays import (
    KINDS,
    MIN_ELEMENTS,
    Function,
    HostArray,
    available,
    empty,
    need_view,
    reshape_view,
    rows_along,
    supported,
)
from ampkit.base.dtypes import DType, int64
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.registration import on
from ampkit.kernels.shared.sorting import register_extremes
from ampkit.ops.reduction import sorting

from ..indexing.gather_scatter import gathered, scatter_added

_sort_rows = Function("sort_rows", "aaai")
_arg_of_rows, _arg_of_columns = Function("arg_extreme_of_rows", "aai"), Function("arg_extreme_of_columns", "aai")
_LONGEST = 1 << 31  # elements along the axis


def sorts(input: HostArray, dim: int, *args: Any, **params: Any) -> bool:
    """Whether kernels sort these elements along `dim`."""
    known = available() and input.dtype in KINDS and input.flags.aligned
    return known and input.ndim > 0 and 0 < input.shape[dim] < _LONGEST and rows_along(input, dim) is not None


def _first(input: HostArray, k: int, dim: int, descending: bool) -> tuple[HostArray, HostArray]:
    """The first k values along `dim` in order, and their places."""
    at = dim % input.ndim
    shape = *input.shape[:at], k, *input.shape[at + 1 :]
    values, places = empty(shape, input.dtype), empty(shape, int64)
    if values.size:
        written = [need_view(rows_along(made, at)) for made in (values, places)]
        _sort_rows(*written, rows_along(input, at), descending)
    return values, places


@sorting.sort_.on("cpu", when=sorts, min_elements=MIN_ELEMENTS)
def sort_cpu(input: HostArray, dim: int, descending: bool, *, dtype: DType) -> Any:
    values, places = _first(input, input.shape[dim], dim, descending)
    return (values, places), Saved(at=places)


@sorting.topk_.on("cpu", when=lambda input, k, dim, largest: sorts(input, dim), min_elements=MIN_ELEMENTS)
def topk_cpu(input: HostArray, k: int, dim: int, largest: bool, *, dtype: DType) -> Any:
    values, places = _first(input, k, dim, largest)
    return (values, places), Saved(at=places, shape=input.shape)


# extremes and their places


def _has_places(input: HostArray, dim: Any, *args: Any, **params: Any) -> bool:
    axis = 0 if dim is None else dim
    return supported(input) and input.ndim > 0 and input.size > 0 and input.shape[axis] < _LONGEST


def _places(input: HostArray, dim: int | None, smallest: bool) -> HostArray:
    """Where along `dim`, or in the flattened input, the extreme is; the axis stays with length 1."""
    if dim is None:
        flat, shape, at = reshape_view(input, (1, 1, input.size)), (1,) * input.ndim, input.ndim - 1
    else:
        at = dim % input.ndim
        sizes = prod(input.shape[:at]), input.shape[at], prod(input.shape[at + 1 :])
        flat, shape = reshape_view(input, sizes), (*input.shape[:at], 1, *input.shape[at + 1 :])
    places = empty(shape, int64)
    if flat.shape[2] == 1 and flat.strides[0] < flat.strides[1]:
        flat = flat.transpose(2, 1, 0)  # along memory
    rows = dim is None or flat.shape[2] == 1
    flat = flat.transpose(0, 2, 1) if rows and dim is not None else flat
    out = reshape_view(places, (*flat.shape[:2], 1) if rows else (flat.shape[0], 1, flat.shape[2]))
    (_arg_of_rows if rows else _arg_of_columns)(out, flat, smallest)
    return places


register_extremes("cpu", _places, gathered, _has_places, MIN_ELEMENTS)


# gradients of values that come with their places


def register_values_backward(*ops: Any) -> None:
    """Register the backward of ops whose first output is the values of their input at `saved.at` along `dim`."""
    for op in ops:
        on(op.backward_primitive, "cpu", _values_backward, _values_backward_fits)


def _values_backward(dy: Any, saved: Saved, needs: Any, dim: int, **params: Any) -> HostArray:
    at = saved.at
    return scatter_added(dy[0].reshape(at.shape), at, dim, getattr(saved, "shape", at.shape), needs[0])


def _values_backward_fits(dy: Any, saved: Saved, *args: Any, **params: Any) -> bool:
    return saved.at is not None and saved.at.ndim > 0 and supported(dy[0]) and dy[0].size > 0


register_values_backward(sorting.sort_, sorting.topk_, sorting.max_, sorting.min_)
