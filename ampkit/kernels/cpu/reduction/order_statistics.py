"""CPU kernels of kthvalue, median and mode: the places of what they select (order_statistics.cpp)."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.native.arrays import MIN_FUSED, Function, HostArray, empty, need_view, rows_along
from ampkit.base.dtypes import DType, int64
from ampkit.core.autograd.saved import Saved
from ampkit.ops.reduction.order_statistics import place_in_order, place_of_mode

from .sorting import sorts

_in_order, _of_modes = Function("places_in_order", "aaii"), Function("places_of_modes", "aa")


def _places(function: Function, input: HostArray, dim: int, *args: Any) -> Any:
    places = empty([1 if axis == dim else n for axis, n in enumerate(input.shape)], int64)
    if places.size:
        function(need_view(rows_along(places, dim)), rows_along(input, dim), *args)
    return places, Saved()


@place_in_order.on("cpu", when=sorts, min_elements=MIN_FUSED)
def place_in_order_cpu(input: HostArray, dim: int, k: int | None, skip_nan: bool, *, dtype: DType) -> Any:
    return _places(_in_order, input, dim, -1 if k is None else k - 1, skip_nan)


@place_of_mode.on("cpu", when=sorts, min_elements=MIN_FUSED)
def place_of_mode_cpu(input: HostArray, dim: int, *, dtype: DType) -> Any:
    return _places(_of_modes, input, dim)
