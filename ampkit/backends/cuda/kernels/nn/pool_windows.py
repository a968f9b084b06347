"""Pooling: where windows lie over images and volumes, as `pool.cu` is told; results lie as they do.

A gradient is gathered, pixel by pixel, from the windows that hold it. Not yet run on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED, blocks_for, launch, typed
from ampkit.base.dtypes import DType, int64, uint8
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.conv_geometry import ConvGeometry, batched, unbatched

Array = Any
BLOCK, BLOCKS = 256, 1 << 16
AXES = 3  # of the kernels: images are volumes of one plane
_SIDES = ("kernel", "stride", "dilation", "before", "size", "count", "edge")
_GEOMETRY = np.dtype(
    [
        *((name, np.int64, 2 + AXES) for name in ("read", "taps")),
        *((name, np.int32, AXES) for name in _SIDES),
        *(("divisor", np.float32), ("channels", np.int32), ("last", np.int32), ("adaptive", np.int32)),
    ],
    align=True,
)


def lies_last(images: Array) -> bool:
    """Whether images [N, C, ...] lie channels last."""
    return images.shape[1] > 1 and bool(images.transpose(0, *range(2, images.ndim), 1).flags.c_contiguous)


def _empty(like: Array, shape: tuple[int, ...], dtype: DType, last: bool) -> Array:
    there, (batch, channels, *size) = backends.backend_of(like), shape
    if not last:
        return there.empty(shape, dtype)
    return there.empty((batch, *size, channels), dtype).transpose(0, -1, *range(1, len(shape) - 1))


def _strides(array: Array) -> tuple[int, ...]:
    """In elements, of batch and channels, of an axis of planes for images, and of the others."""
    batch, channel, *others = [step // array.dtype.itemsize for step in array.strides]
    return batch, channel, *(0,) * (AXES - len(others)), *others


def _run(
    name: str,
    source: Array,
    out: Array,
    w: ConvGeometry,
    place: Array | None = None,
    divisor: float = 0,
    edge: tuple[int, ...] | None = None,
    adaptive: bool = False,
) -> None:
    """Launch `name` for arrays [N, C, ...]: what is read, what is written, and the taps that are one or the other."""
    g, channels, last, axes = np.zeros(1, _GEOMETRY), source.shape[1], lies_last(out), len(w.input_size)
    before = tuple([first for first, _ in w.padding])
    for field, value in zip(
        _SIDES, (w.kernel, w.stride, w.dilation, before, w.input_size, w.output_size, edge or (0,) * axes), strict=True
    ):
        plane = 0 if field in ("before", "edge") else 1
        g[field] = *(plane,) * (AXES - axes), *value
    g["divisor"], g["channels"], g["last"], g["adaptive"] = divisor, channels, last, adaptive
    g["read"], g["taps"] = _strides(source), 0 if place is None else _strides(place)
    packs = last and channels % 8 == 0 and all(_in_packs(a) for a in (source, out, place) if a is not None)
    total = out.size // (8 if packs else 1)
    grid, entry = min(blocks_for(total, BLOCK), BLOCKS), typed(name, source.dtype, out.dtype)
    launch("nn/pool", entry, grid, BLOCK, source, out, place, g, np.uint32(total), np.bool_(packs))


def _in_packs(images: Array) -> bool:
    """Whether 8 channels are one access everywhere."""
    batch, channel, *others = _strides(images)
    aligned = images.data.ptr % min(16, 8 * images.itemsize) == 0
    return channel == 1 and aligned and not any(n % 8 for n in (batch, *others))


def pooled(
    name: str, input: Array, w: ConvGeometry, dtype: DType, place: bool = False, **more: Any
) -> tuple[Array, Any]:
    """Maps of the input's rank, and the taps of maxima."""
    images = batched(input, len(w.input_size))
    shape, last = (*images.shape[:2], *w.output_size), lies_last(images)
    out = _empty(images, shape, dtype, last)
    taps = _empty(images, shape, uint8, last) if place else None
    _run(f"{name}_forward", images, out, w, taps, **more)
    return unbatched(out, input.ndim), None if taps is None else unbatched(taps, input.ndim)


def places(input: Array, w: ConvGeometry) -> Array:
    """Where in its image the largest value of each window of `evenly` stands: maps, int64."""
    images = batched(input, len(w.input_size))
    out = _empty(images, (*images.shape[:2], *w.output_size), int64, lies_last(images))
    _run("max_pool_indices", images, out, w, adaptive=True)
    return unbatched(out, input.ndim)


def gradient(name: str, dy: Array, w: ConvGeometry, saved: Saved, dtype: DType, **more: Any) -> Array:
    """The gradient of the images; it lies as they do, where the forward was one of these kernels."""
    axes = len(w.input_size)
    slope, taps = batched(dy, axes), batched(saved.argmax, axes) if hasattr(saved, "argmax") else None
    dx = _empty(slope, (*slope.shape[:2], *w.input_size), dtype, getattr(saved, "last", lies_last(slope)))
    _run(f"{name}_backward", slope, dx, w, taps, **more)
    return unbatched(dx, dy.ndim)


def evenly(size: Any, out: Any) -> ConvGeometry:
    """ConvGeometry in name only: of them the kernel reads the size of images, and how many there are."""
    one = (1,) * len(size)
    return ConvGeometry(one, one, one, tuple([(0, m - n) for m, n in zip(out, size, strict=True)]), tuple(size))


def fits(input: Array, *args: Any, **params: Any) -> bool:
    """Whether kernels pool such images."""
    return input.dtype in STORED and 0 < input.size <= MAX_ELEMENTS
