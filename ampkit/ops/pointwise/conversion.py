"""Conversions: another dtype, another device, a copy."""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.base import dtypes
from ampkit.base.dtypes import FLOATS, DType
from ampkit.core.autograd.traced_array import TracedArray
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

__all__ = ["clone", "contiguous", "detach", "to"]


def to(
    input: Tensor,
    *target: Any,
    dtype: Any = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: CompatArg = None,
) -> Tensor:
    """input in another dtype, on another device, or as another tensor is.

    `to(x, float16)`, `to(x, "cuda")`, `to(x, other)`, or by keyword. non_blocking has no effect on a CPU,
    memory_format none at all.
    Rounds to nearest, ties to even. Returns input itself if nothing changes, unless copy=True.
    Raises DTypeError or DeviceError for an unknown dtype or device.
    """
    for item in target:
        if isinstance(item, Tensor):
            dtype, device = item.dtype, item.device
        elif isinstance(item, int) and not isinstance(item, bool):
            device = item  # the number of a GPU
        elif isinstance(item, str) and item not in dtypes.NAMES:
            device = item
        elif item is not None and not isinstance(item, bool):
            dtype = item
    out = input if dtype is None else _cast(input, dtypes.parse(dtype))
    out = out if device is None else _move(out, device)
    return clone(out) if copy and out is input else out


def _cast(input: Tensor, dtype: DType) -> Tensor:
    if input.dtype == dtype:
        return input
    if input.dtype in FLOATS and dtype in FLOATS:
        return to_(input, dtype=dtype)
    with ignore_fp_errors():
        return Tensor(backends.backend_of(input.array).cast(input.array, dtype))


@op(cast=Cast.WIDEST, moves=True)
def to_(input: Array, *, dtype):
    """input rounded to another floating-point format."""
    return input, Saved()


@to_.backward
def to_backward(dy, saved, needs, dtype):
    return dy


def _move(input: Tensor, device: Any) -> Tensor:
    there = backends.get(device)
    return input if backends.backend_of(input.array) is there else to_device(input, device=there.device)


@op(cast=Cast.KEEP, moves=True)
def to_device(input: Array, *, device):
    """A copy of input on another device: from GPU to GPU directly, else through the host's memory."""
    here = backends.backend_of(input)
    return backends.to_backend(input, backends.get(device)), Saved(device=here.device_of(input))


@to_device.backward
def to_device_backward(dy, saved, needs, device):
    if isinstance(dy, TracedArray):
        return TracedArray(_move(dy.tensor, saved.device))
    return backends.to_backend(dy, backends.get(saved.device))


@op(cast=Cast.KEEP, moves=True)
def clone(input: Array, *, memory_format: CompatArg = None):
    """A copy; the gradient passes through."""
    return input.copy(), Saved()


@clone.backward
def clone_backward(dy, saved, needs):
    return dy


def contiguous(input: Tensor, memory_format: CompatArg = None) -> Tensor:
    """input if it is contiguous (row-major), else a copy."""
    return input if input.is_contiguous() else clone(input)


def detach(input: Tensor) -> Tensor:
    """The same memory, off the tape."""
    return input.detach()
