"""Sums of squares, norms of order 2 and deviations, of numbers whose squares over- or underflow too.

Squares of float32 are formed and added in float64, which holds all of them. Those of float64 are formed of numbers that
are divided by a power of 2, where the plain sum is out of range.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import float64
from ampkit.core.autograd.saved import cast
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum

from .dot_products import dot_last

_LEAST, _MOST = 2.0**-960, 2.0**1020  # a sum of squares of float64 in between is right


def root_sum_of_squares(x: Any, axis: Any, keepdims: bool = False) -> Any:
    """The root of the sum of x^2 over `axis`, in the dtype of x."""
    wide = cast(x, float64)
    total = blocked_sum(wide * wide, axis, keepdims)
    if x.dtype == float64 and is_out_of_range(total):
        scale = power_of_two(x, axis)
        small = x / scale
        return np.sqrt(blocked_sum(small * small, axis, keepdims)) * (scale if keepdims else scale.reshape(total.shape))
    return cast(np.sqrt(total), x.dtype)


def inverse_root_mean_square(rows: Any, eps: float) -> Any:
    """1 / sqrt(mean of squares + eps) over the last axis, [..., n] -> [..., 1], in the dtype of rows."""
    wide, n = cast(rows, float64), rows.shape[-1]
    total = dot_last(wide, wide)
    if rows.dtype == float64 and is_out_of_range(total):
        scale = power_of_two(rows, -1)
        scale = np.maximum(scale, 1) if eps else scale  # eps is all that counts beside small squares
        small = rows / scale
        return 1 / np.sqrt(dot_last(small, small) / n + eps / scale / scale) / scale
    return cast(1 / np.sqrt(total / n + eps), rows.dtype)


def is_out_of_range(total: Any) -> bool:
    """Whether a sum of squares of float64 may have over- or underflowed; of a device that is not asked, True."""
    if not isinstance(plain(total), (np.ndarray, np.generic)):
        return True
    found = np.asarray(plain(total))
    return not bool(((found > _LEAST) & (found < _MOST)).all())


def power_of_two(x: Any, axis: Any) -> Any:
    """A power of 2 near the largest magnitude over `axis`, with keepdims: squares of x divided by it are in range.

    1 where that magnitude is 0 or not finite.
    """
    largest = np.abs(plain(x)).max(axis, keepdims=True, initial=0)
    exponent = np.where(np.isfinite(largest), np.frexp(largest)[1], 0)
    return np.ldexp(np.ones_like(largest), np.clip(exponent, -1000, 1000))
