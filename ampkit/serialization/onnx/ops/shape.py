"""Shapes, order of axes, joining and splitting, padding, repetition, triangles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ....base.dtypes import bool_, int32, int64
from ..graph import LARGEST, Graph, Value
from ..registry import FLOAT16, MOVED, map_formulas, onnx_op

map_formulas(
    {
        "permute": lambda g, x, dims: g.transpose(x, *(dim % x.ndim for dim in dims)),
        "unbind": lambda g, x, dim: [g.Gather(x, g.constant(i, int64), axis=dim) for i in range(g.results)],
    },
    low=MOVED,
)
map_formulas(
    {
        "tril": lambda g, x, diagonal: g.Trilu(x, g.constant(diagonal, int64), upper=0),
        "triu": lambda g, x, diagonal: g.Trilu(x, g.constant(diagonal, int64), upper=1),
    },
    low=FLOAT16,
)


@onnx_op("reshape", low=MOVED)
def reshape(g: Graph, input: Value, shape: Any) -> Any:
    given = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return g.Reshape(input, g.sizes(*given), allowzero=1 if 0 in given else None)


@onnx_op("broadcast_to", low=FLOAT16)
def broadcast_to(g: Graph, input: Value, shape: Sequence[int]) -> Any:
    lead = len(shape) - input.ndim
    kept = [n if n != -1 else input.shape[i - lead] for i, n in enumerate(shape)]
    return g.Expand(input, g.sizes(*kept))


@onnx_op("cat", low=MOVED)
def cat(g: Graph, tensors: list[Value], dim: int) -> Any:
    rank = max(value.ndim for value in tensors)
    joined = [value for value in tensors if value.ndim == rank]  # PyTorch lets an empty vector stand for nothing
    return g.Concat(*joined, axis=dim)


@onnx_op("stack", low=MOVED)
def stack(g: Graph, tensors: list[Value], dim: int) -> Any:
    at = dim % (tensors[0].ndim + 1)
    return g.Concat(*(g.unsqueeze(value, at) for value in tensors), axis=at)


@onnx_op("split", low=MOVED)
def split(g: Graph, input: Value, ends: Sequence[int], dim: int) -> Any:
    lengths = [end - start for start, end in pairwise((0, *(int(end) for end in ends), input.shape[dim]))]
    if len(lengths) > g.results:  # the ends include the last
        lengths = lengths[: g.results]
    return g.Split(input, g.sizes(*lengths), axis=dim, outputs=len(lengths)) if len(lengths) > 1 else g.Identity(input)


@onnx_op("pad", low=FLOAT16)
def pad(g: Graph, input: Value, widths: Any, value: float) -> Any:
    if input.dtype == bool_:
        padded = g.Pad(g.cast(input, int32), _pads(g, widths), g.constant(value, int32))
        return g.boolean(padded)
    return g.Pad(input, _pads(g, widths), g.constant(value, input.dtype))


@onnx_op("pad_from_input", low=FLOAT16)
def pad_from_input(g: Graph, input: Value, widths: Any, mode: str) -> Any:
    if mode != "circular":
        return g.Pad(input, _pads(g, widths), mode={"reflect": "reflect", "replicate": "edge"}[mode])
    for axis, (before, after) in enumerate(widths):  # in operators of version 18 Pad has no such mode
        if before or after:
            last = [g.slice(input, axis, -before, LARGEST)] if before else []
            first = [g.slice(input, axis, 0, after)] if after else []
            input = g.Concat(*last, input, *first, axis=axis)
    return input


def _pads(g: Graph, widths: Any) -> Value:
    return g.ints(*(int(before) for before, _ in widths), *(int(after) for _, after in widths))


@onnx_op("repeat", low=FLOAT16)
def repeat(g: Graph, input: Value, sizes: Sequence[int]) -> Any:
    lead = len(sizes) - input.ndim
    return g.Tile(g.unsqueeze(input, *range(lead)), g.sizes(*(int(n) for n in sizes)))


@onnx_op("repeat_interleave", low=MOVED)
def repeat_interleave(g: Graph, input: Value, repeats: Any, dim: int | None) -> Any:
    flat = input if dim is not None else g.Reshape(input, g.ints(-1))
    length = input.shape[dim] if dim is not None else int(np.prod(input.shape))
    counts = g.constants[repeats.name].array if isinstance(repeats, Value) else repeats
    index = np.repeat(np.arange(length), counts)
    return g.Gather(flat, g.constant(index, int64, f"{g.prefix}/index"), axis=0 if dim is None else dim)


@onnx_op("flip", low=MOVED)
def flip(g: Graph, input: Value, dims: Any) -> Any:
    for axis in dims if isinstance(dims, (tuple, list)) else (dims,):
        input = g.slice(input, axis, LARGEST, -LARGEST, -1)
    return input


@onnx_op("roll", low=MOVED)
def roll(g: Graph, input: Value, shifts: Any, dims: Any) -> Any:
    both = [value if isinstance(value, (tuple, list)) else (value,) for value in (shifts, dims)]
    if dims in (None, (), []):
        flat = Value(g.Reshape(input, g.ints(-1)).name, input.dtype, (int(np.prod(input.shape)),))
        return g.reshape(_rolled(g, flat, flat.shape, both[0][0], 0), *input.shape)
    found = input
    for shift, axis in zip(*both, strict=True):
        found = _rolled(g, found, input.shape, shift, axis)
    return found


def _rolled(g: Graph, x: Value, shape: Sequence[int], shift: int, axis: int) -> Any:
    if not shape[axis] or not (back := shift % shape[axis]):
        return x
    return g.Concat(g.slice(x, axis, -back, LARGEST), g.slice(x, axis, 0, -back), axis=axis)


@onnx_op("diagonal", low=MOVED)
def diagonal(g: Graph, input: Value, offset: int, dim1: int, dim2: int) -> Any:
    first, second = dim1 % input.ndim, dim2 % input.ndim
    rest = [axis for axis in range(input.ndim) if axis not in (first, second)]
    rows, columns = input.shape[first], input.shape[second]
    index = np.diagonal(np.arange(rows * columns).reshape(rows, columns), offset)
    flat = g.reshape(g.transpose(input, *rest, first, second), *(input.shape[a] for a in rest), rows * columns)
    return g.Gather(flat, g.constant(index, int64, f"{g.prefix}/index"), axis=len(rest))
