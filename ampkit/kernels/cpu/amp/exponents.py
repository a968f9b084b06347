"""CPU kernels of counting by exponent and of lost updates (exponents.cpp), in one pass over stored arrays."""

from __future__ import annotations

import numpy as np

from ampkit.amp.exponents import (
    LIMITS,
    Segments,
    count_exponents_of_segments,
    lost_updates_of_segments,
)
from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.native.arrays import FLOATS, Function, HostArray, available, supported
from ampkit.base.dtypes import float32, float64, int64
from ampkit.base.errors import UnsupportedError
from ampkit.kernels.shared.amp import register_counts

_count_exponents = Function("count_exponents", "app")
_count_exponents_of_segments = Function("count_exponents_of_segments", "apppi")
_count_lost_updates = Function("count_lost_updates", "pppi")
_lost_updates_of_segments = Function("lost_updates_of_segments", "ppppi")
_LIMITS = address(LIMITS)


def _countable(values: HostArray) -> bool:
    kinds = values.dtype in FLOATS or values.dtype == float64
    return type(values) is np.ndarray and kinds and values.flags.aligned and available()


def _counted(values: HostArray, counts: HostArray) -> None:
    if not counts.flags.c_contiguous:
        raise UnsupportedError
    # In the order of memory: a view of what fills its memory, such as channels-last images, and a copy of others.
    _count_exponents(values.ravel("K"), _LIMITS, address(counts))


def _countable_segments(values: HostArray, segments: Segments, counts: HostArray) -> bool:
    return values.size > 0 and _countable(values) and values.flags.c_contiguous and counts.flags.c_contiguous


@count_exponents_of_segments.on("cpu", when=_countable_segments)
def count_exponents_of_segments_cpu(values: HostArray, segments: Segments, counts: HostArray) -> None:
    bounds = np.array(segments, int64)
    _count_exponents_of_segments(values, _LIMITS, address(bounds), address(counts), len(bounds))


def _flat(before: HostArray, after: HostArray) -> bool:
    both = before.dtype == after.dtype == float32 and before.ndim == after.ndim == 1
    return both and type(before) is np.ndarray and supported(before, after)


def _lost(before: HostArray, after: HostArray, counts: HostArray) -> None:
    before, after = np.ascontiguousarray(before), np.ascontiguousarray(after)
    _count_lost_updates(address(before), address(after), address(counts), before.size)


register_counts("cpu", _counted, _lost, _countable, _flat)


def _flat_segments(before: HostArray, after: HostArray, segments: Segments, counts: HostArray) -> bool:
    return _flat(before, after) and all(a.flags.c_contiguous for a in (before, after, counts))


@lost_updates_of_segments.on("cpu", when=_flat_segments)
def lost_updates_of_segments_cpu(before: HostArray, after: HostArray, segments: Segments, counts: HostArray) -> None:
    bounds = np.array(segments, int64)
    _lost_updates_of_segments(address(before), address(after), address(bounds), address(counts), len(bounds))
