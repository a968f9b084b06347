"""Launches the kernels of padding.cu: one launch pads all axes, one computes the gradient.

Results have the memory layout of the input.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import Array, DType

from ..nvrtc import MAX_ELEMENTS, WORD_TYPES, blocks_for, launch, typed

Widths = tuple[tuple[int, int], ...]
BLOCK, BLOCKS, AXES = 256, 4096, 5
MODES = {"constant": 0, "reflect": 1, "replicate": 2, "circular": 3}
_EDGES = np.dtype(
    [("read", np.int64, AXES), *((name, np.int32, AXES) for name in ("size", "wide", "before")), ("mode", np.int32)],
    align=True,
)


def fits(array: Array, padded: tuple[int, ...]) -> bool:
    """Whether the kernels take `array`, where `padded` is the padded shape."""
    return array.itemsize in WORD_TYPES and 0 < array.ndim <= AXES and array.size > 0 and prod(padded) < MAX_ELEMENTS


def widened(shape: tuple[int, ...], widths: Widths) -> tuple[int, ...]:
    """The shape after padding by `widths`, (before, after) per axis."""
    return tuple([n + before + after for n, (before, after) in zip(shape, widths, strict=True)])


def extended(array: Array, widths: Widths, mode: str, fill: Any = 0) -> Array:
    """Pad `array` by `widths`, (before, after) per axis: with `fill`, or with elements of the array as `mode` says."""
    padded, entry = widened(array.shape, widths), typed("pad_forward", WORD_TYPES[array.itemsize])
    word = np.uint64(int.from_bytes(np.asarray(fill, array.dtype).tobytes(), "little"))
    return _run(entry, array, array.dtype, padded, array.shape, padded, widths, mode, word)


def added(dy: Array, widths: Widths, mode: str, dtype: DType) -> Array:
    """The gradient of `extended` for modes other than constant: summed in float32, rounded once to `dtype`."""
    size = tuple([n - before - after for n, (before, after) in zip(dy.shape, widths, strict=True)])
    return _run(typed("pad_backward", dy.dtype, dtype), dy, dtype, size, size, dy.shape, widths, mode)


def _run(
    entry: str, array: Array, dtype: DType, shape: tuple[int, ...], size: tuple[int, ...], padded: tuple[int, ...],
    widths: Widths, mode: str, *more: Any,
) -> Array:  # fmt: skip
    """Launch `entry` from `array` to a new array of `shape`; size: the shape without padding; padded: with padding."""
    order = list(range(array.ndim))  # from the innermost in memory
    order.sort(key=lambda i: (array.strides[i], -i) if all(array.strides) else (-i, 0))
    edges = np.zeros(1, _EDGES)
    edges["mode"], edges["size"], edges["wide"] = MODES[mode], 1, 1
    for d, i in enumerate(order):
        edges["read"][0, d], edges["before"][0, d] = array.strides[i] // array.itemsize, widths[i][0]
        edges["size"][0, d], edges["wide"][0, d] = size[i], padded[i]
    outermost = order[::-1]
    out, total = backends.backend_of(array).empty(tuple([shape[i] for i in outermost]), dtype), prod(shape)
    blocks = min(blocks_for(total, BLOCK), BLOCKS)
    launch("shape/padding", entry, blocks, BLOCK, array, out, edges, *more, np.uint32(total))
    return out.transpose(tuple([outermost.index(i) for i in range(array.ndim)]))
