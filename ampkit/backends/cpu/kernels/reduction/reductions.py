"""CPU kernel of sums over broadcast axes: products with ones, in float32, on all threads.

A product sums as many elements as it can accurately; partial sums are added in float64.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn import eltwise
from ampkit.backends.cpu.onednn.gemm import ROWS_PER_BLOCK, matmul_into
from ampkit.backends.cpu.onednn.library import has_fast_matmul
from ampkit.backends.cpu.onednn.primitive import MIN_ELEMENTS, HostArray, empty
from ampkit.backends.cpu.onednn.reorder import flat_view, memory_order
from ampkit.base.dtypes import float32
from ampkit.core.autograd.accumulate import sum_over

_SHORT = 64  # elements: blocks of fewer, of a number of elements without larger divisors, do not pay


def _fits(gradient: HostArray, axes: tuple[int, ...]) -> bool:
    parts = _parts(gradient, axes) if axes and eltwise.fits(gradient) else None
    return parts is not None and _block(*parts[1:]) >= min(parts[1], _SHORT)


@lru_cache(256)
def _block(along: int, behind: int) -> int:
    """How many of `along` elements a product adds up: a part of them that leaves no rest, longer for rows."""
    most = ROWS_PER_BLOCK if behind > 1 else 8 * ROWS_PER_BLOCK
    return next(n for n in range(min(along, most), 0, -1) if not along % n)


def _parts(array: HostArray, axes: tuple[int, ...]) -> tuple[int, int, int] | None:
    """How many elements `array`, in the order of memory, has before, along and behind `axes`; None if other axes part
    them.
    """
    order = [i for i in memory_order(array) if array.shape[i] > 1]
    at = [place for place, i in enumerate(order) if i in axes]
    if not at or at[-1] - at[0] >= len(at):
        return None
    lengths = [array.shape[i] for i in order]
    return prod(lengths[: at[0]]), prod(lengths[at[0] : at[-1] + 1]), prod(lengths[at[-1] + 1 :])


@sum_over.on("cpu", when=_fits, min_elements=MIN_ELEMENTS)
def sum_over_cpu(gradient: HostArray, axes: tuple[int, ...]) -> HostArray:
    parts, flat = _parts(gradient, axes), flat_view(gradient)
    assert parts is not None
    assert flat is not None
    before, along, behind = parts
    block = _block(along, behind)
    rows = flat.reshape(before * (along // block), block, behind)
    rows = rows if has_fast_matmul(rows.dtype) else in_format(rows, float32)
    sums = empty((len(rows), behind), float32)
    ones = np.ones((block, 1) if behind == 1 else (len(rows), 1, block), rows.dtype)
    a, b = (rows[..., 0], ones) if behind == 1 else (ones, rows)
    if not matmul_into(a, b, sums.reshape(*a.shape[:-1], b.shape[-1])):
        return sum_over.reference.run(gradient, axes)
    order = memory_order(gradient)
    out = empty([1 if i in axes else gradient.shape[i] for i in order], float32)
    out.reshape(before, behind)[...] = np.add.reduce(sums.reshape(before, -1, behind), 1, np.float64)
    return out.transpose(np.argsort(order))
