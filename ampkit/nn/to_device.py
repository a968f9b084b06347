"""Move the tensors of a module to a device or cast them to a dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import backends
from ..backends import Array, Device
from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ArgumentError, DTypeError, StateError
from ..core.fp_errors import ignore_fp_errors
from ..core.parameter import Parameter
from ..core.tensor import Tensor
from .uninitialized import Uninitialized

if TYPE_CHECKING:
    from .module import Module


def destination(where: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Device | None, DType | None]:
    """(device, dtype) from the arguments of `to`; None for what is not to change.

    Raises ArgumentError for too many or unknown arguments, DTypeError and DeviceError for unknown names.
    """
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    for value in args:
        if isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, int) and not isinstance(value, bool):
            device = value  # the number of a GPU
        elif isinstance(value, str) and value not in dtypes.NAMED and device is None:
            device = value
        elif value is not None and not isinstance(value, bool):
            dtype = value
    unknown = set(kwargs) - {"device", "dtype", "non_blocking", "copy", "memory_format"}
    if unknown or len(args) > 4:
        raise ArgumentError(where, "a device, a dtype or both", ", ".join(sorted(unknown)) or f"{len(args)} arguments")
    wanted = None if dtype is None else dtypes.parse(dtype)
    if wanted is not None and not dtypes.is_float(wanted):
        raise DTypeError(where, "a floating-point dtype", dtypes.name_of(wanted))
    return None if device is None else Device(backends.get(device).device), wanted


def move(module: Module, device: Device | None, dtype: DType | None) -> None:
    """Move parameters and buffers; only floating-point ones change their dtype.

    An optimizer that holds a parameter follows it to another dtype. Raises StateError, before any change, for another
    device.
    """
    tensors = [*module._named_tensors("_parameters", "", True, True), *module.named_buffers()]
    sized = [(name, tensor) for name, tensor in tensors if not isinstance(tensor, Uninitialized)]
    changing = [(tensor, name) for name, tensor in sized if _changes(tensor, device, dtype)]
    for tensor, name in changing:
        if isinstance(tensor, Parameter) and is_bound(tensor) and _changes(tensor, device, None):
            cure = "move the model first, then make the optimizer; a trained model moves when its optimizer is gone"
            raise StateError("to", "parameters that no optimizer holds", f"{name!r}, which one holds", cure)
    for _, tensor in tensors:
        if isinstance(tensor, Uninitialized):
            tensor.set_destination(device, dtype if tensor.is_floating_point() else None)
    for tensor, _ in changing:
        _move(tensor, device, dtype)


def change(name: str, tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> None:
    """Replace the memory of a Parameter or buffer by that of `fn` of it, and its gradient by `fn` of that.

    Raises StateError for a Parameter that an optimizer holds, unless the device stays as it is.
    """
    grad, made = tensor.grad, fn(tensor.detach()).array
    if made is tensor.array:
        return
    here = backends.backend_of(made) is backends.backend_of(tensor.array)
    if here and made.dtype == tensor.array.dtype and made.shape == tensor.array.shape:
        tensor.data = Tensor(made)
        return
    if isinstance(tensor, Parameter) and is_bound(tensor) and not here:
        cure = "change the model first, then make the optimizer"
        raise StateError("_apply", "parameters that no optimizer holds", f"{name!r}, which one holds", cure)
    tensor.grad, tensor._cast_copies = None, None
    tensor.rebind(made)
    if grad is not None:
        tensor.grad = fn(grad.detach())


def is_bound(parameter: Parameter) -> bool:
    # Whether a live optimizer holds the Parameter.
    return parameter._arena_segment is not None


def _changes(tensor: Tensor, device: Device | None, dtype: DType | None) -> bool:
    kind = dtype is not None and tensor.is_floating_point() and tensor.dtype != dtype
    return kind or (device is not None and backends.backend_of(tensor.array) is not backends.get(device))


def _move(tensor: Tensor, device: Device | None, dtype: DType | None) -> None:
    grad, tensor.grad = tensor.grad, None
    target = dtype if tensor.is_floating_point() else None
    tensor._cast_copies = None
    tensor.rebind(_moved(tensor.array, device, target))
    if grad is not None:
        with backends.device_guard(tensor.array):
            tensor.accumulate(_moved(grad.array, device, None), grad._scale_tag)


def _moved(array: Array, device: Device | None, dtype: DType | None) -> Array:
    source = backends.backend_of(array)
    with ignore_fp_errors():
        cast = array if dtype is None or array.dtype == dtype else source.cast(array, dtype)
    if device is None or source is backends.get(device):
        return cast
    return backends.to_backend(cast, backends.get(device))
