"""How the arrays of an elementwise chain lie: what the source of its kernel says of them, and its ChainLayout."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.broadcast_layout import merged
from ampkit.base.dtypes import Array, bool_
from ampkit.base.errors import UnsupportedError

from ..nvrtc import MAX_ELEMENTS
from . import elementwise
from .chain_source import Input
from .elementwise import AXES, LaunchPlan
from .index_map import Bound
from .waiting import Value, layout_record


class Reading(NamedTuple):
    """An array that a chain reads. shape, strides: as it goes through it, in bytes.

    Of a part of a concatenation: shift, the offset of index 0 from the array's first element, in elements; bounds, the
    numbers of those within which it is read.
    """

    array: Array
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    shift: int = 0
    bounds: tuple[int, ...] = ()


def whole(value: Value) -> Reading:
    """An array that is read as it is, broadcast."""
    return Reading(value.array, value.array.shape, value.array.strides)


class ChainArrays(NamedTuple):
    """inputs, outputs: what the source says of them. bounds: their rows of strides. own: the kernel's own arguments."""

    inputs: tuple[Input, ...]
    outputs: tuple[int | None, ...]
    bounds: tuple[int, ...]
    layout: Any
    own: tuple[Any, ...]


def chain_arrays(
    plan: LaunchPlan, given: Sequence[Reading], stored: Sequence[Value], bounds: Sequence[Bound] = ()
) -> ChainArrays:
    """The arrays of a chain that goes through the memory of `plan`. Raises UnsupportedError for too many axes."""
    arrays = [*[one.array for one in given], *[one.array for one in stored]]
    layouts = [(one.shape, one.strides, one.array.dtype) for one in given]
    layouts += [(one.array.shape, one.array.strides, one.array.dtype) for one in stored]
    positions = [(plan.shape, one.steps, bool_) for one in bounds]
    axes, count = merged(plan.shape, plan.order, (*layouts, *positions)), prod(plan.shape)
    spans = [sum((size - 1) * abs(row[i]) for size, row in axes) for i in range(len(layouts))]
    if len(axes) > AXES or count > MAX_ELEMENTS or any(span > MAX_ELEMENTS for span in spans):
        raise UnsupportedError
    strides = [tuple([row[i] for _, row in axes]) for i in range(len(axes[0][1]) - 1)]
    own, rows = tuple([row[-1] for _, row in axes]), dict[tuple[int, ...], int]()
    places: list[int | None] = []
    for i, steps in enumerate(strides):
        plain = steps == own and i < len(layouts) and not (i < len(given) and given[i].bounds)
        places.append(None if plain else rows.setdefault(steps, len(rows)))
    inputs = []
    for i, one in enumerate(given):
        repeated = places[i] is not None and not strides[i][-1]
        inputs.append(Input(one.array.dtype, places[i], repeated, one.bounds))
    vector, aligned = elementwise._vector_width(axes, len(layouts), max(one.dtype.itemsize for one in arrays))
    if any(arrays[i].data.ptr % 16 for i in aligned) or not _are_whole(vector, strides, given, bounds):
        vector = 1
    layout = layout_record(count, vector, [size for size, _ in axes], list(rows))
    ends = [end for one in bounds for end in (np.int32(one.low), np.uint32(one.high - one.low))]
    shifts = [np.int32(one.shift) for one in given if one.bounds]
    n = len(layouts)
    rows_of_bounds = tuple([place for place in places[n:] if place is not None])
    return ChainArrays(tuple(inputs), tuple(places[len(given) : n]), rows_of_bounds, layout, (*ends, *shifts))


def _are_whole(vector: int, strides: list[tuple[int, ...]], given: Sequence[Reading], bounds: Sequence[Bound]) -> bool:
    """Whether an access of `vector` elements lies on one side of each bound, and at a multiple of them in its array."""
    for one, steps in zip(bounds, strides[len(strides) - len(bounds) :], strict=True):
        ends = (*steps[:-1], one.low, one.high)
        if steps[-1] and (steps[-1] != 1 or any(end % vector for end in ends)):
            return False
    return not any(one.shift % vector and strides[i][-1] for i, one in enumerate(given))
