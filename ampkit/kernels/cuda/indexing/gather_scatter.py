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
from ampkit.ops.argument_checks import check_index_range
from ampkit.ops.indexing.gather_scatter import gather, scatter_, scatter_add, trim_to_index

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


def _gather(array: Array, dim: int, index: Array) -> Array:
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


def _scatter(array: Array, dim: int, index: Array, values: Array) -> Array:
    """A copy of `array` with `values`, broadcast to index, written along `dim`; the last duplicate wins."""
    array, values = contiguous(array), np.broadcast_to(values, index.shape)
    last = segment_sum.last(_flat_indices(index, dim, array.shape), array.size)
    out = backends.backend_of(array).empty(array.shape, array.dtype)
    iteration = _iteration(values, 0, values.shape, (0,) * values.ndim)
    _run("scatter_forward", (WORD_TYPES[array.itemsize],), array.size, array, values, last, out, iteration)
    return out


def _scatter_add(values: Array, dim: int, index: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """Zeros of `shape` plus `values`, broadcast to index, added along `dim` in float32, rounded once to `dtype`."""
    order = segment_sum.ordered(_flat_indices(index, dim, shape), prod(shape))
    return segment_sum.sums(np.broadcast_to(values, index.shape), order, dtype).reshape(shape)


def _fits(index: Array, shape: tuple[int, ...], *arrays: Array) -> bool:
    """Whether the kernels take this index into `shape`, and the item sizes of `arrays`."""
    sizes = 0 < index.size < MAX_ELEMENTS and 0 < prod(shape) < MAX_ELEMENTS
    return (
        0 < len(shape) <= AXES and index.ndim == len(shape) and sizes and all(a.itemsize in WORD_TYPES for a in arrays)
    )


# the kernels


@gather.on("cuda", when=lambda input, dim, index: _fits(index, input.shape, input))
def gather_cuda(input: Array, dim: int, index: Array, *, dtype: DType) -> Any:
    check_index_range("gather", index, input.shape[dim])
    return _gather(input, dim, index), Saved(index=index, shape=input.shape)


def _supports_gather_backward(dy: Array, saved: Saved, needs: Any, dim: int) -> bool:
    return _fits(saved.index, saved.shape) and dy.dtype in STORED and needs[0] in (dy.dtype, float32)


@gather.on_backward("cuda", when=_supports_gather_backward)
def gather_backward_cuda(dy: Array, saved: Saved, needs: Any, dim: int) -> Any:
    return _scatter_add(dy, dim, saved.index, saved.shape, needs[0]), None


@scatter_.on("cuda", when=lambda input, dim, index, src: _fits(index, input.shape, input))
def scatter_cuda(input: Array, dim: int, index: Array, src: Any, *, dtype: DType) -> Any:
    check_index_range("scatter", index, input.shape[dim])
    input, size = cast(input, dtype), getattr(src, "shape", ())
    values = (
        cast(trim_to_index(src, index.shape), dtype) if hasattr(src, "dtype") else np.full_like(input, src, shape=1)
    )
    return _scatter(input, dim, index, values), Saved(index=index, size=size)


def _supports_scatter_backward(dy: Array, saved: Saved, needs: Any, dim: int) -> bool:
    return _fits(saved.index, dy.shape, dy) and saved.size in ((), saved.index.shape)


@scatter_.on_backward("cuda", when=_supports_scatter_backward)
def scatter_backward_cuda(dy: Array, saved: Saved, needs: Any, dim: int) -> Any:
    zero = backends.backend_of(dy).zeros((), dy.dtype)
    dx = _scatter(dy, dim, saved.index, zero) if needs[0] else None
    return dx, None, _gather(dy, dim, saved.index) if needs[2] else None


def _supports_scatter_add(input: Array, dim: int, index: Array, src: Array) -> bool:
    return _fits(index, input.shape) and input.dtype in STORED and src.dtype in STORED


@scatter_add.on("cuda", when=_supports_scatter_add)
def scatter_add_cuda(input: Array, dim: int, index: Array, src: Array, *, dtype: DType) -> Any:
    check_index_range("scatter_add", index, input.shape[dim])
    added = _scatter_add(trim_to_index(src, index.shape), dim, index, input.shape, float32)
    return elementwise.forward("Add", (input, added, 1.0), dtype), Saved(index=index, size=src.shape)


@scatter_add.on_backward("cuda", when=_supports_scatter_backward)
def scatter_add_backward_cuda(dy: Array, saved: Saved, needs: Any, dim: int) -> Any:
    return dy, None, _gather(dy, dim, saved.index) if needs[2] else None
