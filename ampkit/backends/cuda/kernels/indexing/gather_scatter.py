"""Kernels of single elements along an axis: gathered, written and added by one index, whose axes may lie as they like.

Where several are written to one place a table says which of them is the last; sums are those of `segments`, in a fixed
order. Not yet run on a GPU.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.launch import elementwise, segment_sum
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED, WORD_TYPES, blocks_for, launch, typed
from ampkit.base.dtypes import DType, float32, int32, int64
from ampkit.core.autograd.saved import Saved
from ampkit.ops.argument_checks import check_index_range
from ampkit.ops.indexing.gather_scatter import gather, scatter_, scatter_add, trim_to_index

Array = Any
BLOCK, BLOCKS, AXES = 256, 4096, 6
_UNIT = np.dtype(np.int8)  # of strides that count elements
_WALK = np.dtype(
    [
        *((name, np.int64, AXES) for name in ("index", "array")),
        *((name, np.int64) for name in ("step", "length")),
        *(("size", np.uint32, AXES), ("axes", np.int32)),
    ],
    align=True,
)


def _walk(index: Array, dim: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    """How a kernel goes through `index`, and along `dim` through an array of `shape` with elements `steps` apart."""
    at = dim % len(shape)
    lies = (index.shape, index.strides, index.dtype), (index.shape, (*steps[:at], 0, *steps[at + 1 :]), _UNIT)
    axes = elementwise.merged(index.shape, None, lies)
    walk = np.zeros(1, _WALK)
    walk["axes"], walk["step"], walk["length"] = len(axes), steps[at], shape[at]
    for i, (size, strides) in enumerate(axes):
        walk["size"][0, i], walk["index"][0, i], walk["array"][0, i] = size, *strides[:2]
    return walk


def _run(name: str, types: Any, count: int, *args: Any) -> None:
    grid = min(blocks_for(count, BLOCK), BLOCKS)
    launch("indexing/gather_scatter", typed(name, *types), grid, BLOCK, *args, np.uint32(count))


def _read(index: Array) -> Array:
    """`index` in a dtype that kernels read."""
    return index if index.dtype in (int32, int64) else index.astype(int64)


def _gathered(array: Array, dim: int, index: Array) -> Array:
    """What `index` names along `dim`."""
    index, steps = _read(index), tuple([step // array.itemsize for step in array.strides])
    out = backends.backend_of(array).empty(index.shape, array.dtype)
    types, walk = (WORD_TYPES[array.itemsize], index.dtype), _walk(index, dim, array.shape, steps)
    _run("gather_forward", types, index.size, array, index, out, walk)
    return out


def _places(index: Array, dim: int, shape: tuple[int, ...]) -> Array:
    """The places that `index` names in an array of `shape`, in row-major order, -1 for one outside: [n] int32."""
    index, steps = _read(index), tuple([prod(shape[i + 1 :]) for i in range(len(shape))])
    places = backends.backend_of(index).empty((index.size,), int32)
    _run("flat_index", (index.dtype,), index.size, index, places, _walk(index, dim, shape, steps))
    return places


def _written(array: Array, dim: int, index: Array, values: Array) -> Array:
    """`array` with `values`, broadcast to index, where it names places: the last one for each."""
    array, values = segment_sum.side_by_side(array), np.broadcast_to(values, index.shape)
    last = segment_sum.last(_places(index, dim, array.shape), array.size)
    out = backends.backend_of(array).empty(array.shape, array.dtype)
    walk = _walk(values, 0, values.shape, (0,) * values.ndim)
    _run("scatter_forward", (WORD_TYPES[array.itemsize],), array.size, array, values, last, out, walk)
    return out


def _added(values: Array, dim: int, index: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """Zeros of `shape` with `values`, broadcast to index, added where it names places."""
    order = segment_sum.ordered(_places(index, dim, shape), prod(shape))
    return segment_sum.sums(np.broadcast_to(values, index.shape), order, dtype).reshape(shape)


def _fits(index: Array, shape: tuple[int, ...], *arrays: Array) -> bool:
    """Whether kernels take an index into arrays of `shape`, and move the elements of `arrays`."""
    sizes = 0 < index.size < MAX_ELEMENTS and 0 < prod(shape) < MAX_ELEMENTS
    return (
        0 < len(shape) <= AXES and index.ndim == len(shape) and sizes and all(a.itemsize in WORD_TYPES for a in arrays)
    )


# the kernels


@gather.on("cuda", when=lambda input, dim, index: _fits(index, input.shape, input))
def gather_cuda(input: Array, dim: int, index: Array, *, dtype: DType) -> Any:
    check_index_range("gather", index, input.shape[dim])
    return _gathered(input, dim, index), Saved(index=index, shape=input.shape)


def _sums(dy: Array, saved: Saved, needs: Any, dim: int) -> bool:
    return _fits(saved.index, saved.shape) and dy.dtype in STORED and needs[0] in (dy.dtype, float32)


@gather.on_backward("cuda", when=_sums)
def gather_backward_cuda(dy: Array, saved: Saved, needs: Any, dim: int) -> Any:
    return _added(dy, dim, saved.index, saved.shape, needs[0]), None


@scatter_.on("cuda", when=lambda input, dim, index, src: _fits(index, input.shape, input))
def scatter_cuda(input: Array, dim: int, index: Array, src: Any, *, dtype: DType) -> Any:
    check_index_range("scatter", index, input.shape[dim])
    input, size = _as(input, dtype), getattr(src, "shape", ())
    values = (
        _as(trim_to_index(src, index.shape), dtype) if hasattr(src, "dtype") else np.full_like(input, src, shape=())
    )
    return _written(input, dim, index, values), Saved(index=index, size=size)


def _as(array: Array, dtype: DType) -> Array:
    return array if array.dtype == dtype else backends.backend_of(array).cast(array, dtype)


def _moves(dy: Array, saved: Saved, needs: Any, dim: int) -> bool:
    return _fits(saved.index, dy.shape, dy) and saved.size in ((), saved.index.shape)


@scatter_.on_backward("cuda", when=_moves)
def scatter_backward_cuda(dy: Array, saved: Saved, needs: Any, dim: int) -> Any:
    nothing = backends.backend_of(dy).zeros((), dy.dtype)
    dx = _written(dy, dim, saved.index, nothing) if needs[0] else None
    return dx, None, _gathered(dy, dim, saved.index) if needs[2] else None


def _adds(input: Array, dim: int, index: Array, src: Array) -> bool:
    return _fits(index, input.shape) and input.dtype in STORED and src.dtype in STORED


@scatter_add.on("cuda", when=_adds)
def scatter_add_cuda(input: Array, dim: int, index: Array, src: Array, *, dtype: DType) -> Any:
    check_index_range("scatter_add", index, input.shape[dim])
    added = _added(trim_to_index(src, index.shape), dim, index, input.shape, float32)
    out = elementwise.forward("Add", (input, added, 1.0), dtype)
    return NotImplemented if out is NotImplemented else (out, Saved(index=index, size=src.shape))


@scatter_add.on_backward("cuda", when=_moves)
def scatter_add_backward_cuda(dy: Array, saved: Saved, needs: Any, dim: int) -> Any:
    return dy, None, _gathered(dy, dim, saved.index) if needs[2] else None
