"""Sums of squares and other powers of numbers whose powers over- or underflow too.

Powers of float32 are formed and added in float64, which holds all squares: at once where they are few, else where the
sum in float32 is out of range. Those of float64 are then formed of numbers that are divided by a power of 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.base.dtypes import float32, float64
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import SHORT, add_reduce, blocked_sum
from ampkit.core.casts import cast

from .dot_products import dot_along, dot_last

_HIGH = 6  # powers of float32 up to this order are within float64's range
_RANGE = {float32: (2.0**-100, 2.0**127), float64: (2.0**-960, 2.0**1020)}  # within it a sum of squares is right


def root_sum_of_squares(x: Any, axis: Any, keepdims: bool = False) -> Any:
    """The root of the sum of x^2 over `axis`, in the dtype of x."""
    if type(x) is np.ndarray and x.dtype == float32 and x.size <= SHORT:  # as below, in fewer steps
        wide = x.astype(np.float64)
        if axis is None and not keepdims:
            return np.float32(math.sqrt(np.vdot(wide, wide)))
        wide *= wide
        return np.sqrt(add_reduce(wide, axis, None, None, keepdims)).astype(np.float32)
    return norm_of_powers(x, lambda each: _sum_of_squares(each, axis, keepdims), np.sqrt, axis, keepdims)


def _sum_of_squares(x: Any, axis: Any, keepdims: bool) -> Any:
    if keepdims and isinstance(axis, int):
        return dot_along(x, x, axis)
    return blocked_sum(x * x, axis, keepdims)


def norm_of_powers(
    x: Any, total_of: Callable[[Any], Any], root: Callable[[Any], Any], axis: Any, keepdims: bool, order: float = 2
) -> Any:
    """root(total_of(x)), which is homogeneous: where the total is out of range, of x in float64 or over a `scale_of`.

    order: of the powers.
    """
    if type(x) is np.ndarray and x.dtype == float32 and x.size > SHORT:
        total = total_of(x)
        if not is_out_of_range(total):
            return root(total)
    full = cast(x, float64)
    total = total_of(full)
    if (x.dtype == float64 or abs(order) > _HIGH) and is_out_of_range(total):
        scale = scale_of(full, axis, order)
        found = root(total_of(full / scale))
        return cast(found * (scale if keepdims else scale.reshape(found.shape)), x.dtype)
    return cast(root(total), x.dtype)


def inverse_root_mean_square(rows: Any, eps: float) -> Any:
    """1 / sqrt(mean of squares + eps) over the last axis, [..., n] -> [..., 1], in the dtype of rows."""
    n = rows.shape[-1]
    if type(rows) is np.ndarray and rows.dtype == float32:
        total = dot_last(rows, rows) if rows.size > SHORT else None
        if total is not None and not is_out_of_range(total):
            return 1 / np.sqrt(total / n + eps)
        wide = rows.astype(np.float64)
        if rows.size <= SHORT:  # in fewer steps than below
            wide *= wide
            return (1 / np.sqrt(add_reduce(wide, -1, None, None, True) / n + eps)).astype(np.float32)
        return (1 / np.sqrt(dot_last(wide, wide) / n + eps)).astype(np.float32)
    wide = cast(rows, float64)
    total = dot_last(wide, wide)
    if rows.dtype == float64 and is_out_of_range(total):
        scale = power_of_two(rows, -1)
        scale = np.maximum(scale, 1) if eps else scale  # eps is all that counts beside small squares
        small = rows / scale
        return 1 / np.sqrt(dot_last(small, small) / n + eps / scale / scale) / scale
    return cast(1 / np.sqrt(total / n + eps), rows.dtype)


def is_out_of_range(total: Any) -> bool:
    """Whether a sum of squares may have over- or underflowed; of a device that is not asked, True."""
    if not isinstance(plain(total), (np.ndarray, np.generic)):
        return True
    found = plain(total)
    least, most = _RANGE[found.dtype]
    return bool(found.size) and not (np.minimum.reduce(found, None) > least and np.maximum.reduce(found, None) < most)


def scale_of(x: Any, axis: Any, order: float) -> Any:
    """A number by which to divide x before powers of this order are added over `axis`, with keepdims.

    Of high powers even those of 0.5 are out of range: only quotients by the element that counts most are not.
    """
    if order == 2:
        return power_of_two(x, axis)
    size = np.abs(plain(x))
    extreme = (size.max if order > 0 else size.min)(axis, keepdims=True) if size.size else size.sum(axis, keepdims=True)
    return np.where(np.isfinite(extreme) & (extreme > 0), extreme, 1)


def power_of_two(x: Any, axis: Any) -> Any:
    """A power of 2 near the largest magnitude over `axis`, with keepdims: squares of x divided by it are in range.

    1 where that magnitude is 0 or not finite.
    """
    size = np.abs(plain(x))
    largest = (size.max if size.size else size.sum)(axis, keepdims=True)
    exponent = np.where(np.isfinite(largest), np.frexp(largest)[1], 0)
    return np.ldexp(np.ones_like(largest), np.clip(exponent, -1000, 1000))
