"""CUDA kernels of pooling (`pool.cu`), over images [N, C, H, W] and volumes [N, C, D, H, W], and of its gradient.

Results have the memory layout of the input, channels-first or channels-last. The gradient of an input pixel is
gathered from the windows that contain it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import channels_last, supports_array
from ampkit.backends.cuda.nvrtc import STORED, blocks_for, launch, typed
from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import Array, DType, float32, int64, uint8
from ampkit.base.memory_format import with_channels_inner
from ampkit.kernels.shared.pool import Pooling, register_pools

from ..pointwise import LAUNCHER

BLOCK, BLOCKS = 256, 1 << 16
AXES = 3  # depth, height, width: an image is a volume of depth 1
_PER_AXIS = ("kernel", "stride", "dilation", "pad", "size", "count", "counted_pad")
_GEOMETRY = np.dtype(  # struct Geometry of pool.cu
    [
        *((name, np.int64, 2 + AXES) for name in ("stride_in", "taps")),
        *((name, np.int32, AXES) for name in _PER_AXIS),
        *(("divisor", np.float32), ("channels", np.int32), ("last", np.int32), ("adaptive", np.int32)),
    ],
    align=True,
)


def is_channels_last(images: Array) -> bool:
    """Whether images [N, C, ...] are stored channels-last and have more than one channel."""
    return images.shape[1] > 1 and bool(with_channels_inner(images).flags.c_contiguous)


def _empty(like: Array, shape: tuple[int, ...], dtype: DType, last: bool) -> Array:
    """Allocate an array [N, C, ...], stored channels-last if `last`."""
    return channels_last(like, shape, dtype) if last else backends.backend_of(like).empty(shape, dtype)


def _strides(array: Array) -> tuple[int, ...]:
    """Strides in elements of [N, C, D, H, W]; an image [N, C, H, W] gets 0 for D."""
    batch, channel, *others = [step // array.dtype.itemsize for step in array.strides]
    return batch, channel, *(0,) * (AXES - len(others)), *others


def _run(
    name: str,
    source: Array,
    out: Array,
    geometry: ConvGeometry,
    argmax: Array | None = None,
    divisor: float = 0,
    counted_pad: tuple[int, ...] | None = None,
    adaptive: bool = False,
) -> None:
    """Launch `name` from `source` [N, C, ...] to `out` [N, C, ...].

    argmax: per window the element of its maximum, uint8; a forward writes it, a backward reads it. divisor: what a
    window's sum is divided by, 0 for its number of elements. counted_pad: padding per axis that this number includes.
    adaptive: windows cover the input evenly; kernel, stride and padding of `geometry` are unused.
    """
    g, channels, last, axes = np.zeros(1, _GEOMETRY), source.shape[1], is_channels_last(out), len(geometry.input_size)
    pad = tuple([before for before, _ in geometry.padding])
    windows = geometry.kernel, geometry.stride, geometry.dilation, pad, geometry.input_size, geometry.output_size
    for field, value in zip(_PER_AXIS, (*windows, counted_pad or (0,) * axes), strict=True):
        depth = 0 if field in ("pad", "counted_pad") else 1
        g[field] = *(depth,) * (AXES - axes), *value
    g["divisor"], g["channels"], g["last"], g["adaptive"] = divisor, channels, last, adaptive
    g["stride_in"], g["taps"] = _strides(source), 0 if argmax is None else _strides(argmax)
    vectorize = last and channels % 8 == 0 and all(_vectorizes(a) for a in (source, out, argmax) if a is not None)
    total = out.size // (8 if vectorize else 1)
    grid, entry = min(blocks_for(total, BLOCK), BLOCKS), typed(name, source.dtype, out.dtype)
    launch("nn/pool", entry, grid, BLOCK, source, out, argmax, g, np.uint32(total), np.bool_(vectorize))


def _vectorizes(images: Array) -> bool:
    """Whether 8 consecutive channels of every pixel can be read in one aligned access."""
    batch, channel, *others = _strides(images)
    aligned = images.data.ptr % min(16, 8 * images.itemsize) == 0
    return channel == 1 and aligned and not any(n % 8 for n in (batch, *others))


def pooled(
    name: str, images: Array, geometry: ConvGeometry, dtype: DType, return_argmax: bool = False, **options: Any
) -> tuple[Array, Any]:
    """Run the forward kernel of `name`: the pooled images in `dtype`; the argmax (uint8) or None.

    options: divisor, counted_pad, adaptive, as in `_run`.
    """
    shape, last = (*images.shape[:2], *geometry.output_size), is_channels_last(images)
    out = _empty(images, shape, dtype, last)
    argmax = _empty(images, shape, uint8, last) if return_argmax else None
    _run(f"{name}_forward", images, out, geometry, argmax, **options)
    return out, argmax


def max_indices(images: Array, geometry: ConvGeometry) -> Array:
    """int64 index of the maximum of each adaptive window in its flattened image: [N, C, *output_size]."""
    out = _empty(images, (*images.shape[:2], *geometry.output_size), int64, is_channels_last(images))
    _run("max_pool_indices", images, out, geometry, adaptive=True)
    return out


def gradient(
    name: str, dy: Array, geometry: ConvGeometry, dtype: DType, last: bool | None, argmax: Any = None, **options: Any
) -> Array:
    """The gradient of the images in `dtype`. last: whether it is channels-last; None for the layout of dy."""
    last = is_channels_last(dy) if last is None else last
    dx = _empty(dy, (*dy.shape[:2], *geometry.input_size), dtype, last)
    _run(f"{name}_backward", dy, dx, geometry, argmax, **options)
    return dx


def adaptive_geometry(size: Any, out: Any) -> ConvGeometry:
    """A ConvGeometry whose input_size is `size` and whose output_size is `out`: all that adaptive kernels read."""
    one = (1,) * len(size)
    return ConvGeometry(one, one, one, tuple([(0, m - n) for m, n in zip(out, size, strict=True)]), tuple(size))


def fits(input: Array, *args: Any, **params: Any) -> bool:
    """Whether the kernels take `input`: its dtype is known, and it is neither empty nor too large."""
    return supports_array(input)


def _readable(dy: Array, size: Any, needs: Any) -> bool:
    return dy.dtype in STORED and needs[0] in (dy.dtype, float32) and dy.size > 0


def _windows(w: ConvGeometry, count_include_pad: bool, divisor_override: Any) -> tuple[ConvGeometry, dict[str, Any]]:
    # A window's sum is divided by divisor_override, or else by its elements; padding counts if asked for.
    counted_pad = tuple([before for before, _ in w.padding]) if count_include_pad else None
    return w, {"divisor": divisor_override or 0, "counted_pad": counted_pad}


POOLING = Pooling(
    fits, _readable, is_channels_last,
    lambda images, w, dtype, last: pooled("max_pool", images, w, dtype, return_argmax=True),
    lambda dy, argmax, w, dtype, last: gradient("max_pool", dy, w, dtype, last, argmax),
    lambda images, plan, dtype: pooled("avg_pool", images, plan[0], dtype, **plan[1])[0],
    lambda dy, plan, dtype, last: gradient("avg_pool", dy, plan[0], dtype, last, **plan[1]),
)  # fmt: skip
register_pools(LAUNCHER, POOLING, _windows)
