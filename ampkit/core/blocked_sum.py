"""Blocked summation: sums of any length in the dtype of the elements, with an error of a few roundings.

NumPy sums n elements over an outer axis one after the other, with n roundings relative to the partial sum: a float32
sum of ones stops at 2^24. Here blocks of BLOCK elements are summed, then the block sums are summed the same way: the
error is at most BLOCK * log(n) / log(BLOCK) roundings, and usually one or two.
Higham 2002, Accuracy and Stability of Numerical Algorithms, section 4.2; Blanchard, Higham, Mary 2020, SIAM J. Sci.
Comput. 42, A1541.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..base.dtypes import accumulator, float32

SHORT = 512  # arrays up to this size are summed directly: about ten roundings, and blocks would not be faster
BLOCK = 64  # elements that are added one after the other
_SMALLER = 2.0**-64
add_reduce: Any = np.add.reduce  # of NumPy's arrays, with fewer steps in Python than `array.sum`
_WIDE = 2048  # partial sums that are updated together: they fit in the L1 cache
_THREADS = 16  # the least number of threads that share one output element in a CuPy reduction


def blocked_sum(array: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The sum of `array` (an array or a TracedArray) over `axis`: None for all axes, an int or a tuple.

    Floats are summed in their own dtype, few float32 numbers in float64; integers and booleans in int64. Where a sum of
    NumPy's overflows, it is computed once more so that only its result may.
    """
    if type(array) is not np.ndarray or array.dtype.kind in "biu":
        return _blocked(array, axis, keepdims)
    if array.size <= SHORT and array.dtype == float32:
        if axis is None and not keepdims:
            total = add_reduce(array, axis=None)
            return total if total - total == 0 else np.float32(add_reduce(array, None, np.float64))
        return add_reduce(array, axis, np.float64, keepdims=keepdims).astype(np.float32)
    total = _blocked(array, axis, keepdims)
    return total if np.isfinite(total).all() else _within_range(array, axis, keepdims).astype(array.dtype)


def blocked_mean(array: Any, axis: Any, keepdims: bool, count: int) -> Any:
    """The sum over `axis` divided by `count`, which of arrays does not overflow."""
    if type(array) is not np.ndarray:
        if array.dtype == float32 and not hasattr(array, "tensor"):
            return (blocked_sum(array.astype(np.float64), axis, keepdims) / count).astype(np.float32)
        return blocked_sum(array, axis, keepdims) / count
    if array.size <= SHORT and array.dtype == float32:
        if axis is None and not keepdims:
            total = add_reduce(array, axis=None)
            return total / count if total - total == 0 else np.float32(add_reduce(array, None, np.float64) / count)
        return (add_reduce(array, axis, np.float64, keepdims=keepdims) / count).astype(np.float32)
    total = _blocked(array, axis, keepdims)
    if np.isfinite(total).all():
        return total / count
    return (_within_range(array, axis, keepdims, count)).astype(array.dtype)


def _within_range(array: Any, axis: Any, keepdims: bool, count: int = 1) -> Any:
    # The sum over count, of float32 in float64, of float64 as that of numbers that are smaller by a power of 2.
    if array.dtype == float32:
        return array.sum(axis, np.float64, keepdims=keepdims) / count
    return _blocked(array * _SMALLER, axis, keepdims) / count / _SMALLER


def _blocked(array: Any, axis: Any, keepdims: bool) -> Any:
    if array.size <= SHORT or not isinstance(getattr(array, "strides", None), tuple) or array.dtype.kind in "biu":
        return array.sum(axis, accumulator(array.dtype), keepdims=keepdims)
    reduced = _axes(axis, array.ndim)
    pairwise = _innermost(array, reduced) if isinstance(array, np.ndarray) else ()
    if len(pairwise) == len(reduced):
        return array.sum(axis, keepdims=keepdims)
    total = array.sum(pairwise, keepdims=True) if pairwise else array
    for i in sorted(reduced, key=lambda i: -array.shape[i]):
        if i not in pairwise:
            total = _sum_axis(total, i)
    return total if keepdims else total.reshape([n for i, n in enumerate(array.shape) if i not in reduced])[()]


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    return tuple([i % ndim for i in (axis if isinstance(axis, tuple) else (axis,))])


def _innermost(array: Any, reduced: tuple[int, ...]) -> tuple[int, ...]:
    # The axes of `reduced` that NumPy sums pairwise: the innermost ones that together are contiguous in memory.
    if array.flags.c_contiguous:
        order = [i for i in range(array.ndim - 1, -1, -1) if array.shape[i] > 1]
    else:
        order = sorted((i for i, n in enumerate(array.shape) if n > 1), key=lambda i: abs(array.strides[i]))
    found = [i for i in reduced if array.shape[i] <= 1]
    step = abs(array.strides[order[0]]) if order else 0
    for i in order:
        if i not in reduced or abs(array.strides[i]) != step or not step:
            break
        found.append(i)
        step *= array.shape[i]
    return tuple(found)


def _sum_axis(array: Any, axis: int) -> Any:
    # The sum over one axis, with keepdims: reshaped to [.., blocks, BLOCK, together, ..], summed over BLOCK, repeated.
    n = array.shape[axis]
    block = BLOCK if isinstance(array, np.ndarray) else BLOCK * _THREADS
    if n <= block:
        return array.sum(axis, keepdims=True)
    before, behind, lead = array.shape[:axis], array.shape[axis + 1 :], (slice(None),) * axis
    together = min(n // block, max(1, _WIDE // max(1, prod(behind))))
    blocks = n // (block * together)
    whole = blocks * block * together
    parts = array[(*lead, slice(whole))].reshape(*before, blocks, block, together, *behind).sum(axis + 1)
    total = _sum_axis(parts.reshape(*before, blocks * together, *behind), axis)
    return total + _sum_axis(array[(*lead, slice(whole, n))], axis) if whole < n else total
