"""CUDA kernels of gather, scatter and scatter_add along one axis, for arrays of any strides.

Duplicate indices are deterministic: scatter keeps the last value, found in a table; scatter_add uses segment
sums.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.broadcast_layout import merged
from ampkit.backends.cuda.array_layout import cast, contiguous, to_int32_or_int64
from ampkit.backends.cuda.launch import elementwise, segment_sum
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED, WORD_TYPES, blocks_for, launch, typed
from ampkit.base.dtypes import Array, DType, float32, int32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.indexing import AlongAxis, register_gather_scatter

BLOCK, BLOCKS, AXES = 256, 4096, 6
_UNIT = np.dtype(np.int8)  # itemsize 1: strides are counted in elements
_ITERATION = np.dtype(
    [
        *((name, np.int64, AXES) for name in ("index", "array")),
        *((name, np.int64) for name in ("step", "length")),
        *(("size", np.uint32, AXES), ("axes", np.int32)),
    ],
    align=True,
)


def _iteration(index: Array, dim: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    """Kernel argument: merged axes of `index`, and strides `steps` in elements of an array of `shape` along `dim`."""
    at = dim % len(shape)
    layouts = (index.shape, index.strides, index.dtype), (index.shape, (*steps[:at], 0, *steps[at + 1 :]), _UNIT)
    axes = merged(index.shape, None, layouts)
    iteration = np.zeros(1, _ITERATION)
    iteration["axes"], iteration["step"], iteration["length"] = len(axes), steps[at], shape[at]
    for i, (size, strides) in enumerate(axes):
        iteration["size"][0, i], iteration["index"][0, i], iteration["array"][0, i] = size, *strides[:2]
    return iteration


def _run(name: str, types: Any, count: int, *args: Any) -> None:
    grid = min(blocks_for(count, BLOCK), BLOCKS)
    launch("indexing/gather_scatter", typed(name, *types), grid, BLOCK, *args, np.uint32(count))


def _gather(array: Array, index: Array, dim: int) -> Array:
    """array[..., index, ...] along `dim`, with the shape of `index`."""
    index, steps = to_int32_or_int64(index), tuple([step // array.itemsize for step in array.strides])
    out = backends.backend_of(array).empty(index.shape, array.dtype)
    types, iteration = (WORD_TYPES[array.itemsize], index.dtype), _iteration(index, dim, array.shape, steps)
    _run("gather_forward", types, index.size, array, index, out, iteration)
    return out


def _flat_indices(index: Array, dim: int, shape: tuple[int, ...]) -> Array:
    """Flat row-major indices [n] int32 into an array of `shape`; -1 for an index out of range."""
    index, steps = to_int32_or_int64(index), tuple([prod(shape[i + 1 :]) for i in range(len(shape))])
    flat = backends.backend_of(index).empty((index.size,), int32)
    _run("flat_index", (index.dtype,), index.size, index, flat, _iteration(index, dim, shape, steps))
    return flat


def _scatter(array: Array, values: Array | None, index: Array, dim: int) -> Array:
    """A copy of `array` with `values`, broadcast to index, or zeros written along `dim`; the last duplicate wins."""
    array = contiguous(array)
    values = np.broadcast_to(
        backends.backend_of(array).zeros((), array.dtype) if values is None else values, index.shape
    )
    last = segment_sum.last(_flat_indices(index, dim, array.shape), array.size)
    out = backends.backend_of(array).empty(array.shape, array.dtype)
    iteration = _iteration(values, 0, values.shape, (0,) * values.ndim)
    _run("scatter_forward", (WORD_TYPES[array.itemsize],), array.size, array, values, last, out, iteration)
    return out


def _scatter_add(
    values: Array, index: Array, dim: int, shape: tuple[int, ...], dtype: DType, start: Array | None = None
) -> Array:
    """Zeros of `shape`, or `start`, plus `values`, broadcast to index, added along `dim` in float32, rounded once."""
    summed_in = dtype if start is None else float32
    values, keys = np.broadcast_to(values, index.shape), _flat_indices(index, dim, shape)
    added = segment_sum.sums(values, keys, prod(shape), summed_in).reshape(shape)
    return added if start is None else elementwise.forward("Add", (start, added, 1.0), dtype)


def _fits_shape(index: Array, shape: tuple[int, ...]) -> bool:
    sizes = 0 < index.size < MAX_ELEMENTS and 0 < prod(shape) < MAX_ELEMENTS
    return 0 < len(shape) <= AXES and index.ndim == len(shape) and sizes


def _fits(array: Array, dim: int, index: Array, *src: Any) -> bool:
    return _fits_shape(index, array.shape) and array.itemsize in WORD_TYPES


def _sums_fit(dy: Array, saved: Saved, needs: Any, dim: int) -> bool:
    return _fits_shape(saved.index, saved.shape) and dy.dtype in STORED and needs[0] in (dy.dtype, float32)


def _readable(*arrays: Array) -> bool:
    return all(a.dtype in STORED for a in arrays)


register_gather_scatter(
    AlongAxis("cuda", _gather, _scatter, _scatter_add, cast, _fits, _readable, _sums_fit, checks=False)
)
