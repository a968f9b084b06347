"""Convolutions by cuDNN: forward, gradient of the input, gradient of the weight; images and volumes, channels-last.

Arrays keep their axes [N, C, H, W] and are stored as [N, H, W, C]. Inputs in another layout are copied once; results
are channels-last, so a chain of convolutions copies only its first input. 1-D inputs are images with one row. The
forward of a transposed convolution is the input gradient of a convolution.

Where cuDNN has no engine for a 16-bit dtype, operands are cast to float32, which is exact; so are products on tensor
cores, because TF32 represents every float16 and bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import cast, channels_last, supports_array
from ampkit.backends.cuda.libs.cudnn import aligned, library_of
from ampkit.backends.cuda.libs.gemm import column_sums, product
from ampkit.backends.cuda.nvrtc import blocks_for, launch
from ampkit.backends.precision import convolutions_use_tf32
from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import LOW, Array, DType, bfloat16, float32
from ampkit.base.errors import UnsupportedError
from ampkit.base.memory_format import with_channels_inner
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.conv import register_convolutions
from ampkit.ops.nn.conv_geometry import to_2d

CHANNELS = 8  # as in conv.cu
LARGE = 1 << 20  # elements; a smaller input is not worth the launches that pad its channels


def as_channels_last(images: Array, dtype: DType) -> Array:
    """Images [N, C, H, W] in `dtype`, channels-last and aligned; copied only if they are not."""
    if images.dtype == dtype and with_channels_inner(images).flags.c_contiguous and aligned(images):
        return images
    out = channels_last(images, images.shape, dtype)
    out[...] = images
    return out


def _has_few_channels(images: Array) -> bool:
    """Whether channels of zeros are added, up to CHANNELS, with which cuDNN plans the engines of wide layers."""
    return images.dtype in LOW and images.shape[1] < CHANNELS and images.size >= LARGE


def _padded(images: Array) -> Array:
    """Images [N, C, H, W] of 16 bits as [N, CHANNELS, H, W], channels-last, the added channels zero."""
    n, c, *size = images.shape
    out, spatial = channels_last(images, (n, CHANNELS, *size), images.dtype), prod(size)
    rows = images.reshape(n, c, spatial)
    steps = [np.int64(step // images.itemsize) for step in rows.strides]
    sizes, pixels = (np.int32(c), np.uint32(spatial)), n * spatial
    launch("nn/conv", "pad_channels", blocks_for(pixels, 256), 256, rows, out, *sizes, *steps, np.uint32(pixels))
    return out


# forward, input gradient, weight gradient


def _apply(
    images: Array, weight: Array, bias: Array | None, geometry: ConvGeometry, groups: int, dtype: DType, version: Any,
    transposed: bool,
) -> Array:  # fmt: skip
    kernels = to_2d(weight, weight.ndim - 2)
    if transposed:
        shape = images.shape[0], kernels.shape[1] * groups, *geometry.input_size
        return _run(library_of(images).conv_data, images, kernels, shape, geometry, dtype, bias)
    shape = images.shape[0], kernels.shape[0], *geometry.output_size
    if _has_few_channels(images) and kernels.shape[1] == images.shape[1]:
        images, kernels = _padded(images), _padded(kernels)
    return _run(library_of(images).conv_forward, images, kernels, shape, geometry, dtype, bias)


def _grad_weight(
    images: Array, outputs: Array, geometry: ConvGeometry, groups: int, dtype: DType, buffer: Array | None
) -> Array:
    """The gradient of the weight [O, C / groups, KH, KW] from that of the output, `outputs` [N, O, OH, OW].

    For 16-bit operands it is rounded to 16 bits, as PyTorch's, except for kernels of one element: cuDNN has one engine
    with float32 results, which took 85 of the 130 ms of ResNet-50's step on an H100 (2026-11-26); the whole step takes
    54 ms without it.
    """
    channels, run = images.shape[1] // groups, library_of(outputs).conv_weight
    if groups == 1 and max(geometry.kernel) == 1 and not any(map(any, geometry.padding)):
        with suppress(UnsupportedError):
            return _grad_pointwise(images, outputs, geometry, dtype, buffer)
    images = _padded(images) if groups == 1 and _has_few_channels(images) else images
    shape = outputs.shape[1], images.shape[1] // groups, *geometry.kernel
    return cast(_run(run, images, outputs, shape, geometry, outputs.dtype)[:, :channels], dtype)


def _grad_pointwise(images: Array, outputs: Array, geometry: ConvGeometry, dtype: DType, buffer: Array | None) -> Array:
    """`_grad_weight` of kernels of one element: a matrix product, over all places that the stride reaches.

    buffer: written to and returned if it is contiguous and of this dtype.
    """
    reached = images[(slice(None), slice(None), *(slice(None, None, step) for step in geometry.stride))]
    rows = [with_channels_inner(as_channels_last(x, x.dtype)).reshape(-1, x.shape[1]) for x in (outputs, reached)]
    matrix = buffer.reshape(buffer.shape[:2]) if buffer is not None and buffer.flags.c_contiguous else None
    weight = product(rows[0].T, rows[1], dtype, matrix)
    return buffer if matrix is not None and weight is matrix else weight.reshape(*weight.shape, *geometry.kernel)


def _run(
    run: Any, first: Array, second: Array, shape: Sequence[int], geometry: ConvGeometry, dtype: DType,
    *bias: Array | None,
) -> Array:  # fmt: skip
    """Call `run` on operands of their own dtype, then of float32, until cuDNN has an engine; the result in `dtype`.

    Raises UnsupportedError where it has none.
    """
    stored = first.dtype
    for read in (stored,) if stored == float32 else (stored, float32):
        operands = [as_channels_last(x, read) for x in (first, second)] + [_bias_operand(b, read) for b in bias]
        out = channels_last(first, shape, dtype if read == stored else float32)
        if run(*operands, out, geometry, tf32=convolutions_use_tf32() or read != stored):
            return cast(out, dtype)
    raise UnsupportedError


def _bias_operand(bias: Array | None, dtype: DType) -> Array | None:
    if bias is None or (bias.dtype == dtype and bias.flags.c_contiguous and aligned(bias)):
        return bias
    return bias.astype(dtype, order="C")


# kernels


def _fits(first: Array, second: Array, *more: Any) -> bool:
    known = first.dtype == second.dtype and supports_array(first) and supports_array(second)
    gpu: Any = backends.backend_of(first)
    return known and (first.dtype != bfloat16 or gpu.multiplies_bfloat16) and not gpu.cudnn.unavailable_reason()


def _supports_backward(dy: Array, saved: Saved, needs: Any, **params: Any) -> bool:
    used = [name for name, need in zip(("weight", "input"), needs, strict=False) if need]
    return bool(used) and all(_fits(dy, getattr(saved, name)) for name in used)


def _grad_bias(grad: Array, need: DType | None) -> Array | None:
    return None if need is None else column_sums(grad.reshape(-1, grad.shape[-1]), need)


register_convolutions(
    "cuda", _apply, _grad_weight, _grad_bias, lambda outputs, *more: as_channels_last(outputs, outputs.dtype),
    _fits, _supports_backward, wants_cache=True,
)  # fmt: skip
