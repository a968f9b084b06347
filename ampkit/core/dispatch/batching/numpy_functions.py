"""NumPy's functions on batched arrays, as far as code outside of kernels calls them: views, casts, sums of gradients.

Where there is none here, the samples run one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .array import BatchedArray, aligned, expand, innermost, numpy_functions


def _broadcast_to(array: BatchedArray, shape: Any, subok: bool = False) -> BatchedArray:
    data = aligned([array], array.level, len(shape))[0]
    return BatchedArray(np.broadcast_to(data, (array.level.size, *shape)), array.level)


def _filled(make: Any) -> Callable[..., Any]:
    def made(array: BatchedArray, *args: Any, shape: Any = None, **kwargs: Any) -> BatchedArray:
        sizes = array.shape if shape is None else shape
        full = None if shape is None else (array.level.size, *((sizes,) if type(sizes) is int else sizes))
        return BatchedArray(make(array.data, *args, shape=full, **kwargs), array.level)

    return made


def _stack(arrays: Any, axis: int = 0, **kwargs: Any) -> BatchedArray:
    level: Any = innermost(arrays)
    each = [expand(a, level).data for a in arrays]
    return BatchedArray(np.stack(each, axis + 1 if axis >= 0 else axis, **kwargs), level)


def _moveaxis(array: BatchedArray, source: int, destination: int) -> BatchedArray:
    n = array.ndim
    return BatchedArray(np.moveaxis(array.data, source % n + 1, destination % n + 1), array.level)


def _argsort(array: BatchedArray, axis: int = -1, **kwargs: Any) -> BatchedArray:
    return BatchedArray(np.argsort(array.data, axis % array.ndim + 1, **kwargs), array.level)


def _may_share_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    held = [x.data if isinstance(x, BatchedArray) else x for x in (a, b)]
    return bool(np.may_share_memory(*held))


def _where(condition: Any, a: Any, b: Any) -> BatchedArray:
    level: Any = innermost((condition, a, b))
    return BatchedArray(np.where(*aligned((condition, a, b), level)), level)


def _concatenate(arrays: Any, axis: int = 0, **kwargs: Any) -> BatchedArray:
    level: Any = innermost(arrays)
    each = [expand(a, level).data for a in arrays]
    return BatchedArray(np.concatenate(each, axis + 1 if axis >= 0 else axis, **kwargs), level)


numpy_functions |= {
    np.broadcast_to: _broadcast_to,
    np.ones_like: _filled(np.ones_like),
    np.zeros_like: _filled(np.zeros_like),
    np.empty_like: _filled(np.empty_like),
    np.full_like: _filled(np.full_like),
    np.stack: _stack,
    np.concatenate: _concatenate,
    np.where: _where,
    np.moveaxis: _moveaxis,
    np.argsort: _argsort,
    np.reshape: lambda array, shape, *order: array.reshape(shape),
    np.shape: lambda array: array.shape,
    np.ndim: lambda array: array.ndim,
    np.array: lambda array, dtype=None, order="C", **kwargs: array.copy(),
    np.may_share_memory: _may_share_memory,
}
