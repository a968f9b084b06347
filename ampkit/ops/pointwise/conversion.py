"""Conversions: another dtype, another device, a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError
from ampkit.base.memory_format import (
    channels_are_last,
    contiguous_format,
    inverse,
    is_stored_as,
    need_format,
    preserve_format,
    stored_order,
)
from ampkit.core.autograd.traced_array import TracedArray, plain
from ampkit.core.capture.recorder import recorders
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

__all__ = ["clone", "contiguous", "detach", "to"]


def to(
    input: Tensor,
    *target: Any,
    dtype: Any = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = preserve_format,
) -> Tensor:
    """input in another dtype, on another device, or as another tensor is.

    `to(x, float16)`, `to(x, "cuda")`, `to(x, other)`, or by keyword. non_blocking has no effect on a CPU.
    memory_format: as for `contiguous`; preserve_format keeps the order of the axes in memory.
    Rounds to nearest, ties to even; in float8_e4m3fn what is too large becomes the largest, 448, in other dtypes inf or
    NaN, as in PyTorch (see `cast_to`). Returns input itself if nothing changes, unless copy=True.
    Raises DTypeError, DeviceError or ArgumentError for an unknown dtype, device or format.
    """
    for item in target:
        if isinstance(item, Tensor):
            dtype, device = item._array.dtype, item.device
        elif isinstance(item, int) and not isinstance(item, bool):
            device = item  # the number of a GPU
        elif isinstance(item, str) and item not in dtypes.NAMED:
            device = item
        elif item is not None and not isinstance(item, bool):
            dtype = item
    out = input if dtype is None else _cast(input, dtypes.parse(dtype))
    out = out if device is None else _move(out, device)
    if memory_format is not None and need_format("to", memory_format) != preserve_format:
        out = contiguous(out, memory_format)
    return clone(out) if copy and out is input else out


def _cast(input: Tensor, dtype: dtypes.DType) -> Tensor:
    if input._array.dtype == dtype:
        return input
    if input._array.dtype in dtypes.DIFFERENTIABLE and dtype in dtypes.DIFFERENTIABLE:
        return to_(input, dtype=dtype)
    with ignore_fp_errors():
        made = Tensor(backends.backend_of(input.array).cast(input.array, dtype))
    for recorder in recorders:
        recorder.converted(input, made)
    return made


@op(cast=Cast.WIDEST, moves=True, casts=True)
def to_(input: Array, *, dtype):
    """input rounded to another floating-point format."""
    return input, Saved()


@to_.backward
def to_backward(dy, saved, needs, dtype):
    return dy


for _primitive in (to_.forward, to_.backward_primitive):
    if _primitive is not None:
        _primitive.reference.launches = True  # it reads no elements


def _move(input: Tensor, device: Any) -> Tensor:
    there = backends.get(device)
    return input if backends.backend_of(input._array) is there else to_device(input, device=there.device)


@op(cast=Cast.KEEP, moves=True, opaque=True)
def to_device(input: Array, *, device):
    """A copy of input on another device: from GPU to GPU directly, else through the host's memory."""
    here = backends.backend_of(input)
    return backends.to_backend(input, backends.get(device)), Saved(device=here.device_of(input))


@to_device.backward
def to_device_backward(dy, saved, needs, device):
    if isinstance(dy, TracedArray):
        return TracedArray(_move(dy.tensor, saved.device))
    return backends.to_backend(dy, backends.get(saved.device))


@op(cast=Cast.KEEP, moves=True, opaque=True)
def clone(input: Array, *, memory_format: str | None = preserve_format):
    """A copy, whose axes are stored in the order of memory_format; the gradient passes through.

    memory_format: preserve_format, or None, keeps the order of input, if its memory is dense; see `contiguous`.
    """
    order = stored_order(plain(input), memory_format)
    return input.transpose(order).copy().transpose(inverse(order)), Saved()


clone.check(lambda input, memory_format: memory_format is None or need_format("clone", memory_format, input.ndim))


@clone.backward
def clone_backward(dy, saved, needs, memory_format):
    return dy


def contiguous(input: Tensor, memory_format: Any = contiguous_format) -> Tensor:
    """input if its axes are stored in the order of memory_format, else a copy that is.

    memory_format: contiguous_format, the last axis innermost; channels_last, for [N, C, H, W]; channels_last_3d, for
    [N, C, D, H, W]. Raises ArgumentError for another format, ShapeError for another number of axes.
    """
    wanted = need_format("contiguous", memory_format, input.ndim)
    if wanted == preserve_format:
        raise ArgumentError("contiguous", "a format to store input in", wanted, "leave memory_format out")
    return input if is_stored_as(input.array, wanted) else clone(input, memory_format=wanted)


def stored_like(given: Any, images: Any) -> Any:
    """Images [N, C, *size] or [C, *size], stored channels-last where `given` is, else contiguous; traced ones as is."""
    if isinstance(images, TracedArray):
        return images
    if given.ndim == images.ndim and channels_are_last(given):
        return np.moveaxis(_in_order(np.moveaxis(images, 1, -1)), -1, 1)
    return _in_order(images)


def _in_order(array: Any) -> Any:
    return array if array.flags.c_contiguous else array.copy()


def detach(input: Tensor) -> Tensor:
    """The same memory, off the tape."""
    return input.detach()
