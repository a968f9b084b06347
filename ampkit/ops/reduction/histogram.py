"""Histograms: histogram, histc, bincount."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import LOW, DType, accumulator, float32, rounded
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.base.formats import need_arithmetic
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.tensor import Tensor

from ..argument_checks import check_count, check_floating
from ..indexing.deterministic_scatter import add_at
from ..pointwise.conversion import to

__all__ = ["bincount", "histc", "histogram"]


class Histogram(NamedTuple):
    """Counts, and the edges between them."""

    hist: Tensor
    bin_edges: Tensor


def histogram(
    input: Tensor,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """(hist [n], bin_edges [n + 1]): the number of elements, or the sum of their weights, in each bin.

    bins: the number of equal bins over `range` (low, high), by default input's minimum and maximum; or a tensor of
    ascending edges. A bin includes its lower edge, the last one both. density: normalize the integral to 1. In input's
    dtype. Raises DTypeError for integers, ArgumentError for bins < 1 and a range that decreases or, on the CPU, is not
    finite, ShapeError for weights of another shape.
    """
    check_floating("histogram", input)
    if weight is not None and weight.shape != input.shape:
        raise ShapeError("histogram", f"weight of shape {tuple(input.shape)}", f"{tuple(weight.shape)}")
    x = to(input.detach(), accumulator(input.array.dtype)).array.reshape(-1)
    edges = _bin_edges(x, bins, range, input.array.dtype)
    at = np.searchsorted(edges, x, "right") - 1
    at = np.where(x == edges[-1], edges.size - 2, at)
    at = np.where((x >= edges[0]) & (x <= edges[-1]), at, edges.size - 1)  # values outside the range go to an extra bin
    if weight is None:
        counts = np.bincount(at, minlength=edges.size)
    else:  # CuPy's bincount adds weights in any order
        counts = add_at(weight.detach().array.reshape(-1).astype(np.float64), (at,), (edges.size,))
    counts = counts[:-1].astype(edges.dtype)
    if density:
        with ignore_fp_errors():
            counts = counts / counts.sum() / (edges[1:] - edges[:-1])
    return Histogram(to(Tensor(counts), input.dtype), to(Tensor(edges), input.dtype))


def _bin_edges(x: Any, bins: Any, range: Sequence[float] | None, dtype: DType) -> Any:
    if isinstance(bins, Tensor):
        if bins.ndim != 1 or bins.numel() < 2:
            raise ShapeError("histogram", "bins as edges [2 or more]", f"shape {tuple(bins.shape)}")
        return bins.detach().array.astype(x.dtype)
    if not isinstance(bins, int) or not 1 <= bins < 1 << 40:
        raise ArgumentError("histogram", "bins from 1, or edges as a tensor", repr(bins))
    if range is not None and (len(range) != 2 or not range[0] <= range[1]):
        raise ArgumentError("histogram", "range as (low, high)", repr(range))
    found = (x.min(), x.max()) if x.size else (0.0, 1.0)
    low, high = found if range is None else _bounds(range[0], range[1], dtype)
    _need_finite("histogram", low, high)
    same = low == high
    low, high = low - 0.5 * same, high + 0.5 * same
    parts = np.arange(bins + 1, dtype=np.float64, like=x) / bins
    return (low * (1 - parts) + high * parts).astype(x.dtype)


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The number of elements in each of `bins` equal bins over [min, max]: [bins].

    If min = max, the default, the range is that of input. NaN and values outside are not counted; max counts in the
    last bin. In input's dtype.
    Raises DTypeError for integers, ArgumentError for bins below 1, min above max and, on the CPU, an input whose range
    is not finite.
    """
    need_arithmetic("histc", input)
    check_floating("histc", input)
    check_count("histc", "bins", bins)
    if not -math.inf < min <= max < math.inf:
        raise ArgumentError("histc", "finite min up to max", f"min={min}, max={max}")
    if bins < 1 or not min <= max:
        raise ArgumentError("histc", "bins from 1 and min up to max", f"bins={bins}, min={min}, max={max}")
    x = input.array.reshape(-1)
    x = x.astype(float32) if x.dtype in LOW else x
    low, high = _histc_range(x) if min == max and x.size else _bounds(min, max + (min == max), input.array.dtype)
    inside = (x >= low) & (x <= high)
    at = np.where(inside, np.minimum(np.floor((x - low) / (high - low) * bins), bins - 1), bins).astype(np.int64)
    return Tensor(np.bincount(at, minlength=bins + 1)[:bins].astype(input.array.dtype))


def _bounds(low: float, high: float, dtype: DType) -> tuple[float, float]:
    # Bounds are numbers beside a tensor: what 16 bits make of a number is within a range that ends at it. They stay as
    # they are where they would become one, or infinite.
    near = (rounded(low, dtype), rounded(high, dtype)) if dtype in LOW else (low, high)
    return near if -math.inf < near[0] < near[1] < math.inf else (low, high)


def _histc_range(x: Any) -> tuple[Any, Any]:
    # The minimum and maximum; one less and one more where they are equal.
    low, high = x.min(), x.max()
    _need_finite("histc", low, high)
    return np.where(low == high, low - 1, low), np.where(low == high, high + 1, high)


def _need_finite(where: str, low: Any, high: Any) -> None:
    on_host = isinstance(low, (float, int, np.generic))  # others would have to wait for the device
    if on_host and not (np.isfinite(low) and np.isfinite(high)):
        raise ArgumentError(
            where, "a finite range", f"from {float(low)} to {float(high)}", "give the range: (low, high)"
        )


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The count of each non-negative integer, or the sum of its weights: [n] -> [>= minlength], int64 or float.

    Weights are summed in float64. Raises ShapeError for other shapes, DTypeError for floats, RangeError below 0.
    """
    if input.ndim != 1 or (weights is not None and weights.shape != input.shape):
        got = f"shape {tuple(input.shape)}" + ("" if weights is None else f", weights {tuple(weights.shape)}")
        raise ShapeError("bincount", "a vector, and weights like it", got)
    if input.array.dtype.kind not in "iu":
        raise DTypeError("bincount", "integers", input.dtype.name)
    if minlength < 0:
        raise ArgumentError("bincount", "minlength from 0", f"{minlength}")
    if input.array.size and input.array.min() < 0:
        raise RangeError("bincount", "whole numbers from 0", f"{input.array.min()}")
    if weights is None:
        return Tensor(np.bincount(input.array, minlength=minlength).astype(np.int64))
    count = max(minlength, int(input.array.max()) + 1) if input.array.size else minlength
    total = add_at(weights.array.astype(np.float64), (input.array,), (count,))  # CuPy's bincount adds in any order
    return Tensor(total.astype(np.float32) if weights.array.dtype == np.float32 else total)
