"""Bodies of the poolings, over images and volumes that lie channels first or last; results lie as they do.

A gradient is gathered, pixel by pixel, from the windows that hold it. Not yet run on a GPU.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ... import backends
from ...core.dtypes import DType, float32, uint8
from ...core.saved import Saved
from ...ops import pool
from ...ops.windows import Windows, batched, pair, unbatched
from .kernel import MOST, STORED, blocks_for, launch, typed
from .reductions import Finish, reduced

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


def _last(images: Array) -> bool:
    """Whether images [N, C, ...] lie channels last."""
    return images.shape[1] > 1 and bool(images.transpose(0, *range(2, images.ndim), 1).flags.c_contiguous)


def _empty(like: Array, shape: tuple[int, ...], dtype: DType, last: bool) -> Array:
    there, (batch, channels, *size) = backends.of(like), shape
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
    w: Windows,
    place: Array | None = None,
    divisor: float = 0,
    edge: tuple[int, ...] | None = None,
    adaptive: bool = False,
) -> None:
    """Launch `name` for arrays [N, C, ...]: what is read, what is written, and the taps that are one or the other."""
    g, channels, last, axes = np.zeros(1, _GEOMETRY), source.shape[1], _last(out), len(w.size)
    before = tuple([first for first, _ in w.pads])
    for field, value in zip(
        _SIDES, (w.kernel, w.stride, w.dilation, before, w.size, w.count, edge or (0,) * axes), strict=True
    ):
        plane = 0 if field in ("before", "edge") else 1
        g[field] = *(plane,) * (AXES - axes), *value
    g["divisor"], g["channels"], g["last"], g["adaptive"] = divisor, channels, last, adaptive
    g["read"], g["taps"] = _strides(source), 0 if place is None else _strides(place)
    packs = last and channels % 8 == 0 and all(_in_packs(a) for a in (source, out, place) if a is not None)
    total = out.size // (8 if packs else 1)
    types = (source.dtype, out.dtype) if name.endswith("backward") else (source.dtype,)
    grid = min(blocks_for(total, BLOCK), BLOCKS)
    launch("pool", typed(name, *types), grid, BLOCK, source, out, place, g, np.uint32(total), np.bool_(packs))


def _in_packs(images: Array) -> bool:
    """Whether 8 channels are one access everywhere."""
    batch, channel, *others = _strides(images)
    aligned = images.data.ptr % min(16, 8 * images.itemsize) == 0
    return channel == 1 and aligned and not any(n % 8 for n in (batch, *others))


def _pooled(name: str, input: Array, w: Windows, dtype: DType, place: bool = False, **more: Any) -> tuple[Array, Any]:
    """Maps of the input's rank, and the taps of maxima."""
    images = batched(input, len(w.size))
    shape, last = (*images.shape[:2], *w.count), _last(images)
    out = _empty(images, shape, dtype, last)
    taps = _empty(images, shape, uint8, last) if place else None
    _run(f"{name}_forward", images, out, w, taps, **more)
    return unbatched(out, input.ndim), None if taps is None else unbatched(taps, input.ndim)


def _gradient(name: str, dy: Array, w: Windows, saved: Saved, dtype: DType, **more: Any) -> Array:
    """The gradient of the images; it lies as they do, where the forward was one of these bodies."""
    axes = len(w.size)
    slope, taps = batched(dy, axes), batched(saved.place, axes) if hasattr(saved, "place") else None
    dx = _empty(slope, (*slope.shape[:2], *w.size), dtype, getattr(saved, "last", _last(slope)))
    _run(f"{name}_backward", slope, dx, w, taps, **more)
    return unbatched(dx, dy.ndim)


# the bodies


def _maximum(op: Any, axes: int) -> None:
    def forward(
        input: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, return_indices: bool,
        *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = pool.pool_windows(op.name, input, kernel_size, stride, padding, dilation, ceil_mode, axes)
        if prod(w.kernel) > 255:
            return NotImplemented
        best, place = _pooled("max_pool", input, w, dtype, place=True)
        saved = Saved(place=place, windows=w, last=_last(batched(input, axes)))
        return ((best, pool.positions(place, w)), saved) if return_indices else (best, saved)

    def backward(dy: Any, saved: Saved, needs: Any, **params: Any) -> Array:
        slope = dy[0] if type(dy) is tuple else dy
        return _gradient("max_pool", slope, saved.windows, saved, needs[0])

    _register(op, forward, backward)


def _averages(op: Any, axes: int) -> None:
    def counted(padding: Any, count_include_pad: bool, override: Any) -> dict[str, Any]:
        # What decides by how much sums are divided: the padding that counts, and what is given instead.
        edge = pair(op.name, "padding", padding, 0, axes) if count_include_pad else None
        return {"divisor": override or 0, "edge": edge}

    def forward(
        input: Array, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
        divisor_override: Any, *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = pool.pool_windows(op.name, input, kernel_size, stride, padding, 1, ceil_mode, axes)
        out, _ = _pooled("avg_pool", input, w, dtype, **counted(padding, count_include_pad, divisor_override))
        return out, Saved(windows=w, last=_last(batched(input, axes)))

    def backward(
        dy: Array, saved: Saved, needs: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: Any,
    ) -> Array:  # fmt: skip
        given = counted(padding, count_include_pad, divisor_override)
        return _gradient("avg_pool", dy, saved.windows, saved, needs[0], **given)

    _register(op, forward, backward)


def _adaptive(op: Any, axes: int) -> None:
    def forward(input: Array, output_size: Any, *, dtype: DType) -> Any:
        size = input.shape[-axes:]
        out = pool.adaptive_size(output_size, size, op.name)
        found = NotImplemented
        if out == (1,) * axes:
            found = reduced("Add", input, tuple(range(-axes, 0)), True, dtype, Finish(prod(size)))
        if found is NotImplemented:
            found, _ = _pooled("avg_pool", input, _evenly(size, out), dtype, adaptive=True)
        return found, Saved(size=size, last=_last(batched(input, axes)))

    def backward(dy: Array, saved: Saved, needs: Any, output_size: Any) -> Array:
        w = _evenly(saved.size, dy.shape[-axes:])
        return _gradient("avg_pool", dy, w, saved, needs[0], adaptive=True)

    _register(op, forward, backward)


def _evenly(size: Any, out: Any) -> Windows:
    """Windows in name only: of them the kernel reads the size of images, and how many there are."""
    one = (1,) * len(size)
    return Windows(one, one, one, tuple([(0, m - n) for m, n in zip(out, size, strict=True)]), tuple(size))


def _fits(input: Array, *args: Any, **params: Any) -> bool:
    return input.dtype in STORED and 0 < input.size <= MOST


def _back_fits(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
    slope, place = dy[0] if type(dy) is tuple else dy, getattr(saved, "place", None)
    known = slope.dtype in STORED and needs[0] in (slope.dtype, float32) and slope.size > 0
    return known and (place is None or place.dtype == uint8)


def _register(op: Any, forward: Any, backward: Any) -> None:
    forward.__name__, backward.__name__ = f"{op.name}_cuda", f"{op.name}_backward_cuda"
    op.on("cuda", when=_fits)(forward)
    op.backward_primitive.on("cuda", when=_back_fits)(backward)


for _axes in (2, 3):
    _maximum(getattr(pool, f"max_pool{_axes}d"), _axes)
    _averages(getattr(pool, f"avg_pool{_axes}d"), _axes)
    _adaptive(getattr(pool, f"adaptive_avg_pool{_axes}d"), _axes)
