"""Blocked summation: sums over any number of elements, in the dtype of the elements, whose error stays at a few
roundings.

A plain sum of n elements over an outer axis rounds n times, each time at the size of the sum so far: 16 million ones in
float32 stop at 2^24, and a variance of that many is off by half. Here at most BLOCK additions follow each other, then
the sums of blocks are summed alike: the error is at most BLOCK * log(n) / log(BLOCK) roundings, and mostly one or two.
Higham 2002, Accuracy and Stability of Numerical Algorithms, section 4.2; Blanchard, Higham, Mary 2020, SIAM J. Sci.
Comput. 42, A1541.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..base.dtypes import accumulator

SHORT = 512  # elements that are summed as they come: an error of some ten roundings, and no time to win
BLOCK = 64  # additions that follow each other
_WIDE = 2048  # elements side by side: the sums of one block stay in the first-level cache
_THREADS = 16  # of a CuPy reduction that share an element of the result, at least


def blocked_sum(array: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The sum of `array`, traced or not, over `axis`: None, one or several; of integers in int64."""
    if array.size <= SHORT or not isinstance(getattr(array, "strides", None), tuple) or array.dtype.kind in "biu":
        return array.sum(axis, accumulator(array.dtype), keepdims=keepdims)
    gone = _axes(axis, array.ndim)
    pairwise = _innermost(array, gone) if isinstance(array, np.ndarray) else ()
    if len(pairwise) == len(gone):
        return array.sum(axis, keepdims=keepdims)
    total = array.sum(pairwise, keepdims=True) if pairwise else array
    for i in sorted(gone, key=lambda i: -array.shape[i]):
        if i not in pairwise:
            total = _along(total, i)
    return total if keepdims else total.reshape([n for i, n in enumerate(array.shape) if i not in gone])[()]


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    return tuple([i % ndim for i in (axis if isinstance(axis, tuple) else (axis,))])


def _innermost(array: Any, gone: tuple[int, ...]) -> tuple[int, ...]:
    # The axes of `gone` that NumPy itself sums pairwise: those that together are one run of memory, innermost.
    if array.flags.c_contiguous:
        order = [i for i in range(array.ndim - 1, -1, -1) if array.shape[i] > 1]
    else:
        order = sorted((i for i, n in enumerate(array.shape) if n > 1), key=lambda i: abs(array.strides[i]))
    found = [i for i in gone if array.shape[i] <= 1]
    step = abs(array.strides[order[0]]) if order else 0
    for i in order:
        if i not in gone or abs(array.strides[i]) != step or not step:
            break
        found.append(i)
        step *= array.shape[i]
    return tuple(found)


def _along(array: Any, axis: int) -> Any:
    # The sum over one axis, which stays with length 1: [.., blocks, BLOCK, together, ..] over BLOCK, and so on.
    n = array.shape[axis]
    block = BLOCK if isinstance(array, np.ndarray) else BLOCK * _THREADS
    if n <= block:
        return array.sum(axis, keepdims=True)
    before, behind, lead = array.shape[:axis], array.shape[axis + 1 :], (slice(None),) * axis
    together = min(n // block, max(1, _WIDE // max(1, prod(behind))))
    blocks = n // (block * together)
    whole = blocks * block * together
    parts = array[(*lead, slice(whole))].reshape(*before, blocks, block, together, *behind).sum(axis + 1)
    total = _along(parts.reshape(*before, blocks * together, *behind), axis)
    return total + _along(array[(*lead, slice(whole, n))], axis) if whole < n else total
