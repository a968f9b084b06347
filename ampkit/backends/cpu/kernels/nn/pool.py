"""CPU kernels of pooling: oneDNN's, over channels-last images and volumes.

oneDNN's maximum ignores NaN and returns the lowest finite number for -inf, so it is used for finite images only. 16-bit
dtypes without a fast implementation are cast to float32, and so are gradients of overlapping windows, which oneDNN sums
in the dtype that they have.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, NamedTuple

from ampkit.backends.cpu.channels_last import (
    channels_last_layout,
    empty_channels_last,
    nhwc,
    onednn_geometry,
    to_channels_last,
)
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn.all_finite import finite
from ampkit.backends.cpu.onednn.library import library
from ampkit.backends.cpu.onednn.primitive import (
    ALGORITHM,
    DIFF_DST,
    DIFF_SRC,
    DST,
    MIN_ELEMENTS,
    SRC,
    TRAINING,
    WORKSPACE,
    Call,
    HostArray,
    attributes,
    cached,
    primitive_desc,
)
from ampkit.backends.cpu.onednn.reorder import FORMATS
from ampkit.base.dtypes import DType, float32, uint8
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn import pool
from ampkit.ops.nn.conv_geometry import ConvGeometry, batched, unbatched

_CHANNELS = 4  # with fewer, most of each vector stays empty


class _Pool(NamedTuple):
    """What a pool's primitives depend on; kind: "max_pool", "avg_pool", or "avg_pool_inside" without the padding."""

    kind: str
    images: tuple[int, ...]
    geometry: ConvGeometry
    dtype: DType

    @property
    def maps(self) -> tuple[int, ...]:
        return *self.images[:2], *self.geometry.output_size

    def given(self) -> list[Any]:
        stride, dilation, before, after = onednn_geometry(self.geometry)
        return [stride, (ctypes.c_int64 * len(self.geometry.kernel))(*self.geometry.kernel), dilation, before, after]


def _forward(p: _Pool) -> Call:
    of, to = channels_last_layout(p.images, p.dtype), channels_last_layout(p.maps, p.dtype)
    given = [TRAINING, ALGORITHM[p.kind], of.handle, to.handle, *p.given(), attributes()]
    return Call("pooling_forward", given, [(SRC, of), (DST, to), *_taps(p)])


def _backward(p: _Pool) -> Call:
    to, of, kind = channels_last_layout(p.images, p.dtype), channels_last_layout(p.maps, p.dtype), ALGORITHM[p.kind]
    hint = primitive_desc("pooling_forward", TRAINING, kind, to.handle, of.handle, *p.given(), attributes())
    given = [kind, to.handle, of.handle, *p.given(), hint, attributes()]
    return Call("pooling_backward", given, [(DIFF_DST, of), (DIFF_SRC, to), *_taps(p)])


def _taps(p: _Pool) -> list[Any]:
    # Which position of its window each maximum stands at, numbered as the reference does, a byte each.
    return [(WORKSPACE, channels_last_layout(p.maps, uint8))] if p.kind == "max_pool" else []


def pooled(images: HostArray, p: _Pool) -> tuple[HostArray, HostArray | None] | None:
    """Maps [N, C, rows, columns] in p.dtype or float32, and of maxima their taps, uint8.

    None where oneDNN has no fast code, or would take a maximum of what is not finite.
    """
    call = cached(("pool", p), lambda: _forward(p))
    if call is None:
        return None if p.dtype == float32 else pooled(images, p._replace(dtype=float32))
    images, out = to_channels_last(images, p.dtype), empty_channels_last(p.maps, p.dtype)
    if p.kind != "max_pool":
        call(images, out)
        return out, None
    if not finite(nhwc(images).reshape(-1)):
        return None
    taps = empty_channels_last(p.maps, uint8)
    call(images, out, taps)
    return out, taps


def image_gradient(dy: HostArray, p: _Pool, taps: HostArray | None = None) -> HostArray | None:
    """The gradient of the images, in p.dtype or float32; taps: of maxima. None where oneDNN has no fast code."""
    overlap = any(s < k for s, k in zip(p.geometry.stride, p.geometry.kernel, strict=True))
    call = None if overlap and p.dtype != float32 else cached(("pool_backward", p), lambda: _backward(p))
    if call is None:
        return None if p.dtype == float32 else image_gradient(dy, p._replace(dtype=float32), taps)
    out = empty_channels_last(p.images, p.dtype)
    call(to_channels_last(dy, p.dtype), out, *(() if taps is None else (to_channels_last(taps, uint8),)))
    return out


# the kernels


def is_large(array: HostArray, size: tuple[int, ...]) -> bool:
    # Whether images of `size`, as many as there are in the array, are worth a call.
    axes = len(size)
    large = array.size // (prod(array.shape[-axes:]) or 1) * prod(size) >= MIN_ELEMENTS
    return large and array.shape[-axes - 1] >= _CHANNELS and array.dtype in FORMATS and library() is not None


def run_pool(kind: str, input: HostArray, w: ConvGeometry, dtype: DType) -> tuple[HostArray, HostArray | None] | None:
    images = batched(input, len(w.input_size))
    found = pooled(images, _Pool(kind, images.shape, w, input.dtype))
    return None if found is None else (unbatched(in_format(found[0], dtype), input.ndim), found[1])


def run_backward(kind: str, dy: HostArray, w: ConvGeometry, need: DType, taps: HostArray | None = None) -> Any:
    grad = batched(dy, len(w.input_size))
    dx = image_gradient(grad, _Pool(kind, (*grad.shape[:2], *w.input_size), w, dy.dtype), taps)
    return NotImplemented if dx is None else unbatched(in_format(dx, need), dy.ndim)


def _largest(w: ConvGeometry) -> bool:
    # Whether a byte tells the taps of these windows. With dilation, a window may lie in the padding alone.
    return prod(w.kernel) < 255 and max(w.dilation) == 1


def _maximum(op: Any, axes: int) -> None:
    def forward(
        input: HostArray, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
        return_indices: bool, *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = pool.pool_geometry(op.name, input, kernel_size, stride, padding, dilation, ceil_mode, axes)
        found = run_pool("max_pool", input, w, dtype) if _largest(w) else None
        if found is None:
            return NotImplemented
        best, taps = found
        place = unbatched(taps, input.ndim)
        saved = Saved(argmax=place, geometry=w)
        return ((best, pool.flat_indices(place, w)), saved) if return_indices else (best, saved)

    def back_fits(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
        return is_large(dy[0] if type(dy) is tuple else dy, saved.geometry.input_size) and _largest(saved.geometry)

    def backward(dy: Any, saved: Saved, needs: Any, **params: Any) -> Any:
        grad = dy[0] if type(dy) is tuple else dy
        return run_backward("max_pool", grad, saved.geometry, needs[0], batched(saved.argmax, axes))

    register(op, axes, forward, back_fits, backward)


def _averages(op: Any, axes: int) -> None:
    def forward(
        input: HostArray, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
        divisor_override: Any, *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = pool.pool_geometry(op.name, input, kernel_size, stride, padding, 1, ceil_mode, axes)
        kind = _mean(w, count_include_pad, divisor_override)
        found = None if kind is None else run_pool(kind, input, w, dtype)
        return NotImplemented if found is None else (found[0], Saved(geometry=w))

    def back_fits(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
        return is_large(dy, saved.geometry.input_size)

    def backward(
        dy: HostArray, saved: Saved, needs: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: Any,
    ) -> Any:  # fmt: skip
        kind = _mean(saved.geometry, count_include_pad, divisor_override)
        return NotImplemented if kind is None else run_backward(kind, dy, saved.geometry, needs[0])

    register(op, axes, forward, back_fits, backward)


def _mean(w: ConvGeometry, count_include_pad: bool, divisor_override: Any) -> str | None:
    # What oneDNN calls this mean. It has no word for padding that counts beside pixels beyond it that do not.
    if divisor_override is not None:
        return None
    if not count_include_pad or not any(before for before, _ in w.padding):
        return "avg_pool_inside"
    return "avg_pool" if all(before == after for before, after in w.padding) else None


def register(op: Any, axes: int, forward: Any, back_fits: Any, backward: Any) -> None:
    forward.__name__, backward.__name__ = f"{op.name}_cpu", f"{op.name}_backward_cpu"
    op.on("cpu", when=lambda input, *more: is_large(input, input.shape[-axes:]))(forward)
    op.on_backward("cpu", when=back_fits)(backward)


for _axes in (2, 3):
    _maximum(getattr(pool, f"max_pool{_axes}d"), _axes)
    _averages(getattr(pool, f"avg_pool{_axes}d"), _axes)
