"""x[index], gather and scatter, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....base.dtypes import bool_, int64
from ....base.errors import ArgumentError
from ..graph import LARGEST, Graph, Value
from ..registry import FLOAT16, MOVED, map_formulas, onnx_op
from ..trace import WHERE

map_formulas({"embedding": lambda g, input, weight, padding_idx: g.Gather(weight, input, axis=0)}, low=MOVED)
map_formulas({"scatter": lambda g, x, dim, index, src: _scattered(g, x, dim, index, src, None)}, low=FLOAT16)
map_formulas({"scatter_add": lambda g, x, dim, index, src: _scattered(g, x, dim, index, src, "add")})


@onnx_op("basic_getitem", low=MOVED)
def basic_getitem(g: Graph, input: Value, index: Any) -> Any:
    parts = _full(index if isinstance(index, tuple) else (index,), input.ndim)
    slices: list[tuple[int, int, int, int]] = []  # axis, start, end, step
    numbers, inserted, axis, place = [], [], 0, 0
    for part in parts:
        if part is None:
            inserted.append(place)
        elif isinstance(part, slice):
            if part != slice(None):
                slices.append((axis, *_bounds(part)))
            axis += 1
        else:
            slices.append((axis, int(part), int(part) + 1 if part != -1 else LARGEST, 1))
            numbers.append(axis)
            axis += 1
        place += part is None or isinstance(part, slice)
    found = g.squeeze(_sliced(g, input, slices), *numbers)
    return g.unsqueeze(found, *inserted)


def _sliced(g: Graph, x: Value, slices: Sequence[tuple[int, int, int, int]]) -> Any:
    if not slices:
        return x
    axes, starts, ends, steps = zip(*slices, strict=True)
    return g.Slice(x, g.sizes(*starts), g.sizes(*ends), g.ints(*axes), g.ints(*steps))


def _bounds(part: slice) -> tuple[int, int, int]:
    step = 1 if part.step is None else int(part.step)
    first, last = (0, LARGEST) if step > 0 else (LARGEST, -LARGEST)
    return first if part.start is None else int(part.start), last if part.stop is None else int(part.stop), step


def _full(parts: Sequence[Any], ndim: int) -> list[Any]:
    """An index with a part for each axis, beside None for new ones: `...` and what is left out are whole slices."""
    used = sum(_axes_used(part) for part in parts)
    rest = [slice(None)] * (ndim - used)
    at = next((i for i, part in enumerate(parts) if part is ...), len(parts))
    return [*parts[:at], *rest, *parts[at + 1 :]]


def _axes_used(part: Any) -> int:
    if part is None or part is ...:
        return 0
    return part.ndim if isinstance(part, Value) and part.dtype == bool_ else 1


@onnx_op("advanced_getitem", low=MOVED)
def advanced_getitem(g: Graph, input: Value, index: Any) -> Any:
    parts = _full([*_integers(g, index if isinstance(index, tuple) else (index,))], input.ndim)
    slices = [(a, *_bounds(p)) for a, p in enumerate(parts) if isinstance(p, slice) and p != slice(None)]
    found = _sliced(g, input, slices)
    axes = [axis for axis, part in enumerate(parts) if isinstance(part, Value)]
    if len(axes) == 1:
        return g.Gather(found, parts[axes[0]], axis=axes[0])
    rest = [axis for axis in range(input.ndim) if axis not in axes]
    shape = np.broadcast_shapes(*(parts[axis].shape for axis in axes))
    columns = [g.unsqueeze(g.Expand(g.cast(parts[a], int64), g.sizes(*shape)), len(shape)) for a in axes]
    leading = g.GatherND(g.transpose(found, *axes, *rest), g.Concat(*columns, axis=len(shape)))
    if axes[-1] - axes[0] >= len(axes) or not axes[0]:  # apart: NumPy puts what they select first
        return leading
    before, new = range(len(shape), len(shape) + axes[0]), range(len(shape))
    return g.transpose(leading, *before, *new, *range(len(shape) + axes[0], len(shape) + len(rest)))


def _integers(g: Graph, parts: Sequence[Any]) -> Any:
    """The parts of an index with integers in place of masks, whose values must be known."""
    for part in parts:
        if isinstance(part, bool):
            raise ArgumentError(WHERE, "an index of integers, slices or tensors", f"{part} in {g.label}")
        if isinstance(part, list):
            yield g.constant(np.asarray(part, int64), int64, f"{g.prefix}/index")
        elif not isinstance(part, Value) or part.dtype != bool_:
            yield part
        elif part.name not in g.constants:
            cure = "take a fixed number of elements, or use ops.where"
            raise ArgumentError(WHERE, "results whose shape does not depend on values", f"a mask in {g.label}", cure)
        else:
            for places in np.nonzero(g.constants[part.name].array):
                yield g.constant(places, int64, f"{g.prefix}/index")


@onnx_op("index_select", low=MOVED)
def index_select(g: Graph, input: Value, dim: int, index: Value) -> Any:
    if not input.ndim:
        return g.Identity(input)
    return g.Gather(input, index if index.ndim else g.unsqueeze(index, 0), axis=dim)


def _cut_to(g: Graph, x: Value, shape: Sequence[int], dim: int) -> Any:
    # GatherElements wants the other axes as long as those of the index.
    axes = [a for a in range(x.ndim) if a != dim % x.ndim and x.shape[a] != shape[a]]
    return _sliced(g, x, [(axis, 0, shape[axis], 1) for axis in axes])


@onnx_op("gather", low=MOVED)
def gather(g: Graph, input: Value, dim: int, index: Value) -> Any:
    if not input.ndim:
        return g.Identity(input)
    return g.GatherElements(_cut_to(g, input, index.shape, dim), index, axis=dim)


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


@onnx_op("scatter_reduce")
def scatter_reduce(g: Graph, input: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool) -> Any:
    if reduce not in _REDUCTIONS or not include_self:
        needs = f"scatter_reduce by {', '.join(_REDUCTIONS)} with include_self=True"
        raise ArgumentError(WHERE, needs, f"{reduce!r}, {include_self} in {g.label}")
    return _scattered(g, input, dim, index, src, _REDUCTIONS[reduce])


def _scattered(g: Graph, x: Value, dim: int, index: Value, src: Value, reduction: str | None) -> Any:
    if src.shape != index.shape:
        axes = [a for a in range(src.ndim) if src.shape[a] != index.shape[a]]
        numbers = [(a, 0, index.shape[a], 1) for a in axes]
        src = _sliced(g, src, numbers) if src.ndim else g.Expand(src, g.sizes(*index.shape))
    return g.ScatterElements(x, index, src, axis=dim, reduction=reduction)


@onnx_op("index_add")
def index_add(g: Graph, input: Value, dim: int, index: Value, source: Value, alpha: float) -> Any:
    axis = dim % input.ndim
    order = [axis, *(a for a in range(input.ndim) if a != axis)]
    back = [order.index(a) for a in range(input.ndim)]
    rows = g.transpose(source if alpha == 1 else g.Mul(source, g.constant(alpha)), *order)
    found = g.ScatterND(g.transpose(input, *order), g.unsqueeze(index, 1), rows, reduction="add")
    return g.transpose(found, *back)
