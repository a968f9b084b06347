"""PyTorch's address of what scripts use for mixed precision: `from ampkit.amp import autocast, GradScaler`.

Here too is what they put around the two halves of an `autograd.Function`: `custom_fwd` and `custom_bwd`. And the
recipes below 16 bits, of which a Policy takes one: `recipe("mxfp8")`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import backends
from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import DeviceError, DTypeError
from ..core import policy
from ..core.nested import tensors_in, with_tensors
from ..core.policy import autocast
from ..core.policy.recipe import Operands, Quantization, QuantizationRecipe, recipe
from ..core.tensor import Tensor
from .grad_scaler import GradScaler

__all__ = [
    "GradScaler", "Operands", "Quantization", "QuantizationRecipe", "autocast", "custom_bwd", "custom_fwd",
    "is_autocast_available", "recipe",
]  # fmt: skip


def is_autocast_available(device_type: str) -> bool:
    """Whether `autocast(device_type)` works on this machine. Raises DeviceError for what names no kind of device."""
    if not isinstance(device_type, str) or not device_type.isidentifier():
        raise DeviceError("is_autocast_available", "device_type 'cpu' or 'cuda'", repr(device_type))
    try:
        backends.get(device_type)
    except DeviceError:
        return False
    return True


def custom_fwd(fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: Any = None) -> Any:
    """Decorate the forward of an `autograd.Function` that is called under autocast, with ctx or without.

    Without cast_inputs it runs as it is called. With a floating-point dtype there, a call inside of a region casts the
    floating-point tensors on `device_type` among its arguments, also in lists, tuples and dicts, but for float64, and
    runs with autocast off; a call outside of a region changes nothing. The backward takes `custom_bwd`.
    Raises DeviceError for an unknown device_type, DTypeError for another dtype or something that cannot be called.
    """
    kind, dtype = policy.need_kind(device_type), None if cast_inputs is None else _floating(cast_inputs)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    _need_callable("custom_fwd", fwd)
    if dtype is None:
        return fwd

    @functools.wraps(fwd)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not policy.is_autocast_enabled(kind):
            return fwd(*args, **kwargs)
        args, kwargs = (_cast(values, kind, dtype) for values in (args, kwargs))
        with autocast(kind, enabled=False):
            return fwd(*args, **kwargs)

    forward.__dict__["casts_inputs"] = dtype  # read by custom_bwd
    return forward


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Any:
    """Decorate the backward of an `autograd.Function`: tensors on `device_type` are autocast as they were in forward.

    With the cast_inputs of `custom_fwd` they are not autocast in either.
    Raises DeviceError for an unknown device_type, DTypeError for something that cannot be called.
    """
    kind = policy.need_kind(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    _need_callable("custom_bwd", bwd)

    @functools.wraps(bwd)
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        token = policy.enter(policy.on_alone(ctx._region, kind))
        try:
            return bwd(ctx, *grad_outputs)
        finally:
            policy.leave(token)

    return backward


def _floating(dtype: Any) -> DType:
    found = dtypes.parse(dtype)
    if not dtypes.is_float(found):
        raise DTypeError("custom_fwd", "a floating-point dtype to cast to", dtypes.name_of(found))
    return found


def _need_callable(where: str, function: Any) -> None:
    if not callable(function):
        raise DTypeError(where, "a callable", f"a {type(function).__name__}")


def _cast(values: Any, kind: str, dtype: DType) -> Any:
    return with_tensors(values, iter([_as(tensor, kind, dtype) for tensor in tensors_in(values)]))


def _as(tensor: Tensor, kind: str, dtype: DType) -> Tensor:
    cast = tensor.is_floating_point() and tensor.array.dtype != dtypes.float64 and tensor.device.type == kind
    return tensor.to(dtype) if cast else tensor
