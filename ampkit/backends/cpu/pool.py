"""Bodies of the poolings: oneDNN's, over images that lie channels-last.

oneDNN's maximum passes over NaN and takes the lowest finite number for -inf, so it is asked for finite images alone.
What it has no fast code for in a 16-bit format is widened, and so are gradients that add up: it sums them in the format
they are in.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from ...core.dtypes import DType, float32, uint8
from ...core.saved import Saved
from ...ops import pool
from ...ops.windows import Windows, batched, unbatched, windows
from .binary import finite
from .device import in_format
from .dnnl import library
from .formats import FORMATS
from .images import channels_last, geometry, layout, turned
from .onednn import (
    ALGORITHM,
    DIFF_DST,
    DIFF_SRC,
    DST,
    SRC,
    TRAINING,
    WORKSPACE,
    WORTH,
    Call,
    HostArray,
    attributes,
    described,
    prepared,
)

_CHANNELS = 4  # with fewer, most of each vector stays empty


class _Pool(NamedTuple):
    """What a pool's primitives depend on; kind: "max_pool", "avg_pool", or "avg_pool_inside" without the padding."""

    kind: str
    images: tuple[int, ...]
    windows: Windows
    dtype: DType

    @property
    def maps(self) -> tuple[int, ...]:
        return *self.images[:2], *self.windows.count

    def given(self) -> list[Any]:
        stride, dilation, before, after = geometry(self.windows)
        return [stride, (ctypes.c_int64 * 2)(*self.windows.kernel), dilation, before, after]


def _forward(p: _Pool) -> Call:
    of, to = layout(p.images, p.dtype), layout(p.maps, p.dtype)
    given = [TRAINING, ALGORITHM[p.kind], of.handle, to.handle, *p.given(), attributes()]
    return Call("pooling_forward", given, [(SRC, of), (DST, to), *_taps(p)])


def _backward(p: _Pool) -> Call:
    to, of, kind = layout(p.images, p.dtype), layout(p.maps, p.dtype), ALGORITHM[p.kind]
    hint = described("pooling_forward", TRAINING, kind, to.handle, of.handle, *p.given(), attributes())
    given = [kind, to.handle, of.handle, *p.given(), hint, attributes()]
    return Call("pooling_backward", given, [(DIFF_DST, of), (DIFF_SRC, to), *_taps(p)])


def _taps(p: _Pool) -> list[Any]:
    # Which position of its window each maximum stands at, numbered as the reference does, a byte each.
    return [(WORKSPACE, layout(p.maps, uint8))] if p.kind == "max_pool" else []


def pooled(images: HostArray, p: _Pool) -> tuple[HostArray, HostArray | None] | None:
    """Maps [N, C, rows, columns] in p.dtype or float32, and of maxima their taps, uint8.

    None where oneDNN has no fast code, or would take a maximum of what is not finite.
    """
    call = prepared(("pool", p), lambda: _forward(p))
    if call is None:
        return None if p.dtype == float32 else pooled(images, p._replace(dtype=float32))
    images, out = turned(images, p.dtype), channels_last(p.maps, p.dtype)
    if p.kind != "max_pool":
        call(images, out)
        return out, None
    if not finite(images.transpose(0, 2, 3, 1).reshape(-1)):
        return None
    taps = channels_last(p.maps, uint8)
    call(images, out, taps)
    return out, taps


def image_gradient(dy: HostArray, p: _Pool, taps: HostArray | None = None) -> HostArray | None:
    """The gradient of the images, in p.dtype or float32; taps: of maxima. None where oneDNN has no fast code."""
    overlap = any(s < k for s, k in zip(p.windows.stride, p.windows.kernel, strict=True))
    call = None if overlap and p.dtype != float32 else prepared(("pool_backward", p), lambda: _backward(p))
    if call is None:
        return None if p.dtype == float32 else image_gradient(dy, p._replace(dtype=float32), taps)
    out = channels_last(p.images, p.dtype)
    call(turned(dy, p.dtype), out, *(() if taps is None else (turned(taps, uint8),)))
    return out


# the bodies


def _fits(input: HostArray) -> bool:
    return _worth(input, input.shape[-2:])


def _worth(array: HostArray, size: tuple[int, ...]) -> bool:
    # Whether images of `size`, as many as there are in the array, are worth a call.
    *_, channels, rows, columns = array.shape
    large = array.size // (rows * columns or 1) * size[0] * size[1] >= WORTH
    return large and channels >= _CHANNELS and array.dtype in FORMATS and library() is not None


def _pooled(kind: str, input: HostArray, w: Windows, dtype: DType) -> tuple[HostArray, HostArray | None] | None:
    images = batched(input)
    found = pooled(images, _Pool(kind, images.shape, w, input.dtype))
    return None if found is None else (unbatched(in_format(found[0], dtype), input.ndim), found[1])


def _gradient(kind: str, dy: HostArray, w: Windows, need: DType, taps: HostArray | None = None) -> Any:
    slope = batched(dy)
    dx = image_gradient(slope, _Pool(kind, (*slope.shape[:2], *w.size), w, dy.dtype), taps)
    return NotImplemented if dx is None else unbatched(in_format(dx, need), dy.ndim)


def _largest(w: Windows) -> bool:
    # Whether a byte tells the taps of these windows. With dilation, a window may lie in the padding alone.
    return w.kernel[0] * w.kernel[1] < 255 and w.dilation == (1, 1)


@pool.max_pool2d.on("cpu", when=lambda input, *more: _fits(input))
def max_pool2d_cpu(
    input: HostArray, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, return_indices: bool,
    *, dtype: DType,
) -> Any:  # fmt: skip
    w = pool.pool_windows("max_pool2d", input, kernel_size, stride, padding, dilation, ceil_mode)
    found = _pooled("max_pool", input, w, dtype) if _largest(w) else None
    if found is None:
        return NotImplemented
    best, taps = found
    place = unbatched(taps, input.ndim)
    saved = Saved(place=place, windows=w)
    return ((best, pool.positions(place, w)), saved) if return_indices else (best, saved)


def _max_back_fits(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
    return _worth(dy[0] if type(dy) is tuple else dy, saved.windows.size) and _largest(saved.windows)


@pool.max_pool2d.backward_primitive.on("cpu", when=_max_back_fits)  # type: ignore[union-attr,untyped-decorator]
def max_pool2d_backward_cpu(dy: Any, saved: Saved, needs: Any, **params: Any) -> Any:
    slope = dy[0] if type(dy) is tuple else dy
    return _gradient("max_pool", slope, saved.windows, needs[0], batched(saved.place))


@pool.avg_pool2d.on("cpu", when=lambda input, *more: _fits(input))
def avg_pool2d_cpu(
    input: HostArray, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
    divisor_override: Any, *, dtype: DType,
) -> Any:  # fmt: skip
    w = pool.pool_windows("avg_pool2d", input, kernel_size, stride, padding, 1, ceil_mode)
    kind = _mean(w, count_include_pad, divisor_override)
    found = None if kind is None else _pooled(kind, input, w, dtype)
    return NotImplemented if found is None else (found[0], Saved(windows=w))


@pool.avg_pool2d.backward_primitive.on(  # type: ignore[union-attr,untyped-decorator]
    "cpu", when=lambda dy, saved, *more, **params: _worth(dy, saved.windows.size)
)
def avg_pool2d_backward_cpu(
    dy: HostArray, saved: Saved, needs: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: Any,
) -> Any:  # fmt: skip
    kind = _mean(saved.windows, count_include_pad, divisor_override)
    return NotImplemented if kind is None else _gradient(kind, dy, saved.windows, needs[0])


def _mean(w: Windows, count_include_pad: bool, divisor_override: Any) -> str | None:
    # What oneDNN calls this mean. It has no word for padding that counts beside pixels beyond it that do not.
    if divisor_override is not None:
        return None
    if not count_include_pad or (w.pads[0][0], w.pads[1][0]) == (0, 0):
        return "avg_pool_inside"
    return "avg_pool" if all(before == after for before, after in w.pads) else None


@pool.adaptive_avg_pool2d.on("cpu", when=lambda input, output_size: _fits(input))
def adaptive_avg_pool2d_cpu(input: HostArray, output_size: Any, *, dtype: DType) -> Any:
    size = input.shape[-2:]
    w = _even(size, pool.adaptive_size(output_size, size))
    found = None if w is None else _pooled("avg_pool", input, w, dtype)
    return NotImplemented if found is None else (found[0], Saved(size=size))


@pool.adaptive_avg_pool2d.backward_primitive.on(  # type: ignore[union-attr,untyped-decorator]
    "cpu", when=lambda dy, saved, *more, **params: _worth(dy, saved.size)
)
def adaptive_avg_pool2d_backward_cpu(dy: HostArray, saved: Saved, needs: Any, output_size: Any) -> Any:
    w = _even(saved.size, dy.shape[-2:])
    return NotImplemented if w is None else _gradient("avg_pool", dy, w, needs[0])


def _even(size: Any, out: Any) -> Windows | None:
    # The windows that divide images evenly; None if they do not.
    if size[0] % out[0] or size[1] % out[1]:
        return None
    kernel = size[0] // out[0], size[1] // out[1]
    return windows("adaptive_avg_pool2d", kernel, kernel, 0, 1, size)
