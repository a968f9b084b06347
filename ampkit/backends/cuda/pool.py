"""Bodies of the poolings, over images that lie channels first or last; results lie as images do.

A gradient is gathered, pixel by pixel, from the windows that hold it. Not yet run on a GPU.
"""

from __future__ import annotations

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
_PAIRS = ("kernel", "stride", "dilation", "before", "size", "count", "edge")
_GEOMETRY = np.dtype(
    [
        *((name, np.int64, 4) for name in ("read", "taps")),
        *((name, np.int32, 2) for name in _PAIRS),
        *(("divisor", np.float32), ("channels", np.int32), ("last", np.int32)),
    ],
    align=True,
)


def _last(images: Array) -> bool:
    """Whether images [N, C, H, W] lie channels last."""
    return images.shape[1] > 1 and bool(images.transpose(0, 2, 3, 1).flags.c_contiguous)


def _empty(like: Array, shape: tuple[int, ...], dtype: DType, last: bool) -> Array:
    there, (batch, channels, rows, columns) = backends.of(like), shape
    return (
        there.empty((batch, rows, columns, channels), dtype).transpose(0, 3, 1, 2)
        if last
        else there.empty(shape, dtype)
    )


def _strides(array: Array) -> tuple[int, ...]:
    return tuple([step // array.dtype.itemsize for step in array.strides])


def _run(
    name: str,
    source: Array,
    out: Array,
    w: Windows,
    place: Array | None = None,
    divisor: float = 0,
    edge: tuple[int, int] = (0, 0),
) -> None:
    """Launch `name` for arrays [N, C, ., .]: what is read, what is written, and the taps that are one or the other."""
    g, channels, last = np.zeros(1, _GEOMETRY), source.shape[1], _last(out)
    before = w.pads[0][0], w.pads[1][0]
    for field, value in zip(_PAIRS, (w.kernel, w.stride, w.dilation, before, w.size, w.count, edge), strict=True):
        g[field] = value
    g["divisor"], g["channels"], g["last"], g["read"] = divisor, channels, last, _strides(source)
    g["taps"] = 0 if place is None else _strides(place)
    packs = last and channels % 8 == 0 and all(_in_packs(a) for a in (source, out, place) if a is not None)
    total = out.size // (8 if packs else 1)
    types = (source.dtype, out.dtype) if name.endswith("backward") else (source.dtype,)
    grid = min(blocks_for(total, BLOCK), BLOCKS)
    launch("pool", typed(name, *types), grid, BLOCK, source, out, place, g, np.uint32(total), np.bool_(packs))


def _in_packs(images: Array) -> bool:
    """Whether 8 channels are one access everywhere."""
    _, channel, *others = _strides(images)
    others.append(_strides(images)[0])
    return channel == 1 and images.data.ptr % min(16, 8 * images.itemsize) == 0 and not any(n % 8 for n in others)


# forward


def _images(input: Array, *args: Any, **params: Any) -> bool:
    return input.dtype in STORED and 0 < input.size <= MOST


def _pooled(name: str, input: Array, w: Windows, dtype: DType, place: bool = False, **more: Any) -> tuple[Array, Any]:
    """Maps of the input's rank, and the taps of maxima."""
    images = batched(input)
    shape, last = (*images.shape[:2], *w.count), _last(images)
    out = _empty(images, shape, dtype, last)
    taps = _empty(images, shape, uint8, last) if place else None
    _run(f"{name}_forward", images, out, w, taps, **more)
    return unbatched(out, input.ndim), None if taps is None else unbatched(taps, input.ndim)


@pool.max_pool2d.on("cuda", when=_images)
def max_pool2d_cuda(
    input: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, return_indices: bool,
    *, dtype: DType,
) -> Any:  # fmt: skip
    w = pool.pool_windows("max_pool2d", input, kernel_size, stride, padding, dilation, ceil_mode)
    if w.kernel[0] * w.kernel[1] > 255:
        return NotImplemented
    best, place = _pooled("max_pool", input, w, dtype, place=True)
    saved = Saved(place=place, windows=w, last=_last(batched(input)))
    return ((best, pool.positions(place, w)), saved) if return_indices else (best, saved)


def _counted(w: Windows, padding: Any, count_include_pad: bool, override: Any) -> dict[str, Any]:
    """What decides by how much sums are divided: the padding that counts, and what is given instead."""
    edge = pair("avg_pool2d", "padding", padding, 0) if count_include_pad else (0, 0)
    return {"divisor": override or 0, "edge": edge}


@pool.avg_pool2d.on("cuda", when=_images)
def avg_pool2d_cuda(
    input: Array, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
    divisor_override: Any, *, dtype: DType,
) -> Any:  # fmt: skip
    w = pool.pool_windows("avg_pool2d", input, kernel_size, stride, padding, 1, ceil_mode)
    counted = _counted(w, padding, count_include_pad, divisor_override)
    return _pooled("avg_pool", input, w, dtype, **counted)[0], Saved(windows=w, last=_last(batched(input)))


@pool.adaptive_avg_pool2d.on("cuda", when=_images)
def adaptive_avg_pool2d_cuda(input: Array, output_size: Any, *, dtype: DType) -> Any:
    size = input.shape[-2:]
    out = pool.adaptive_size(output_size, size)
    found = NotImplemented
    if out == (1, 1):
        found = reduced("Add", input, (-2, -1), True, dtype, Finish(size[0] * size[1]))
    if found is NotImplemented:
        found = _pooled("adaptive_avg_pool", input, _adaptive(size, out), dtype)[0]
    return found, Saved(size=size, last=_last(batched(input)))


def _adaptive(size: Any, out: Any) -> Windows:
    """Windows in name only: of them the kernel reads the size of images, and how many there are."""
    one, (rows, columns) = (1, 1), size
    return Windows(one, one, one, ((0, out[0] - rows), (0, out[1] - columns)), (rows, columns))


# backward


def _slopes(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
    slope, place = dy[0] if type(dy) is tuple else dy, getattr(saved, "place", None)
    known = slope.dtype in STORED and needs[0] in (slope.dtype, float32) and slope.size > 0
    return known and (place is None or place.dtype == uint8)


def _gradient(name: str, dy: Array, w: Windows, saved: Saved, dtype: DType, **more: Any) -> Array:
    """The gradient of the images; it lies as they do, where the forward was one of these bodies."""
    slope, taps = batched(dy), batched(saved.place) if hasattr(saved, "place") else None
    dx = _empty(slope, (*slope.shape[:2], *w.size), dtype, getattr(saved, "last", _last(slope)))
    _run(f"{name}_backward", slope, dx, w, taps, **more)
    return unbatched(dx, dy.ndim)


@pool.max_pool2d.backward_primitive.on("cuda", when=_slopes)  # type: ignore[union-attr,untyped-decorator]
def max_pool2d_backward_cuda(dy: Any, saved: Saved, needs: Any, **params: Any) -> Array:
    slope = dy[0] if type(dy) is tuple else dy
    return _gradient("max_pool", slope, saved.windows, saved, needs[0])


@pool.avg_pool2d.backward_primitive.on("cuda", when=_slopes)  # type: ignore[union-attr,untyped-decorator]
def avg_pool2d_backward_cuda(
    dy: Array, saved: Saved, needs: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: Any,
) -> Array:  # fmt: skip
    counted = _counted(saved.windows, padding, count_include_pad, divisor_override)
    return _gradient("avg_pool", dy, saved.windows, saved, needs[0], **counted)


@pool.adaptive_avg_pool2d.backward_primitive.on("cuda", when=_slopes)  # type: ignore[union-attr,untyped-decorator]
def adaptive_avg_pool2d_backward_cuda(dy: Array, saved: Saved, needs: Any, output_size: Any) -> Array:
    return _gradient("adaptive_avg_pool", dy, _adaptive(saved.size, dy.shape[-2:]), saved, needs[0])
