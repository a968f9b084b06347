"""Convert PyTorch's arguments and results to ampkit's: tensors by value, dtypes and memory formats by name."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import torch

import ampkit

from .comparison import Leaf

DTYPES = {
    getattr(torch, name): getattr(ampkit, name)
    for name in "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()
}
_FORMATS = {getattr(torch, name): getattr(ampkit, name)
            for name in ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")}  # fmt: skip


class OutOfScope(Exception):  # noqa: N818
    """A sample needs a feature that ampkit does not have, which the message names."""


def to_ampkit(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Convert an argument. Raises OutOfScope.

    seen: converted tensors by the id of the original, so that one tensor passed twice remains one.
    """
    seen = {} if seen is None else seen
    if isinstance(value, torch.Tensor):
        if id(value) not in seen:
            seen[id(value)] = tensor_of(value)
        return seen[id(value)]
    if isinstance(value, (list, tuple)):
        return _sequence(value, [to_ampkit(item, seen) for item in value])
    if isinstance(value, dict):
        return type(value)((key, to_ampkit(item, seen)) for key, item in value.items())
    if isinstance(value, slice):
        return slice(*[to_ampkit(item, seen) for item in (value.start, value.stop, value.step)])
    return _plain(value)


def _sequence(value: Any, items: list[Any]) -> Any:
    if isinstance(value, torch.Size):
        return tuple(items)
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return dtype_of(value)
    if isinstance(value, torch.memory_format):
        return _FORMATS[value]
    if isinstance(value, torch.layout):
        if value is not torch.strided:
            raise OutOfScope("sparse tensors")
        return ampkit.strided
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, complex):
        raise OutOfScope("complex numbers")
    if isinstance(value, torch.Generator):
        raise OutOfScope("a generator of PyTorch's")
    return _code(value) if isinstance(value, torch.nn.Module) or inspect.isroutine(value) else value


def _code(value: Any) -> Any:
    # A function of both libraries by its name.
    name = getattr(value, "__name__", "")
    if getattr(torch.nn.functional, name, None) is value and hasattr(ampkit.ops, name):
        return getattr(ampkit.ops, name)
    raise OutOfScope("an argument that is PyTorch's code")


def dtype_of(dtype: torch.dtype) -> Any:
    """Convert a dtype. Raises OutOfScope."""
    if dtype.is_complex:
        raise OutOfScope("complex numbers")
    if dtype not in DTYPES:
        raise OutOfScope("dtypes that ampkit does not have")
    return DTYPES[dtype]


def tensor_of(value: torch.Tensor) -> ampkit.Tensor:
    """Copy a tensor, including requires_grad. Raises OutOfScope."""
    if value.layout is not torch.strided or value.is_nested:
        raise OutOfScope("sparse tensors")
    if value.is_quantized:
        raise OutOfScope("quantized tensors")
    if any(getattr(value, "names", ())):  # releases of PyTorch that still have them
        raise OutOfScope("named tensors")
    if value.device.type != "cpu":
        raise OutOfScope("other devices")
    if value.dim() > 64:
        raise OutOfScope("more axes than NumPy has")
    dtype_of(value.dtype)
    made = ampkit.tensor(array_of(value), dtype=DTYPES[value.dtype])
    return made.requires_grad_() if value.requires_grad and value.is_floating_point() else made


def array_of(value: torch.Tensor) -> np.ndarray:
    """Copy the values of a tensor to a NumPy array with the same order of axes in memory; bfloat16 included."""
    plain = value.detach().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return np.array(plain.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(plain.numpy())


def leaves(result: Any) -> list[Leaf]:
    """The tensors and numbers of a result of either library, in order, without None."""
    if result is None:
        return []
    if isinstance(result, torch.Tensor):
        return [_torch_leaf(result)]
    if isinstance(result, ampkit.Tensor):
        array = np.asarray(result.detach().numpy())
        return [Leaf(array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array, array.dtype.name)]
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in leaves(item)]
    if isinstance(result, dict):
        return [leaf for item in result.values() for leaf in leaves(item)]
    if isinstance(result, (bool, int, float)):
        return [Leaf(np.asarray(result), type(result).__name__)]
    return [Leaf(np.asarray(str(result)), "text")]


def _torch_leaf(value: torch.Tensor) -> Leaf:
    dtype_of(value.dtype)
    if value.layout is not torch.strided:
        raise OutOfScope("sparse tensors")
    plain = value.detach().resolve_conj().resolve_neg()
    array = plain.float().numpy() if plain.dtype is torch.bfloat16 else plain.numpy()
    return Leaf(array, str(value.dtype).removeprefix("torch."))


def in_float64(value: Any) -> Any:
    """Arguments with all floating-point tensors and dtypes in float64, from which the truth is computed."""
    if isinstance(value, torch.Tensor):
        wide = value.detach().double() if value.is_floating_point() else value
        return wide.requires_grad_() if value.requires_grad else wide
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return _sequence(value, [in_float64(item) for item in value])
    if isinstance(value, dict):
        return {key: in_float64(item) for key, item in value.items()}
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def copied(value: Any) -> Any:
    """Arguments with copied tensors, so that a call cannot change the sample."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return _sequence(value, [copied(item) for item in value])
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return value


def tensors(value: Any, kind: type = torch.Tensor) -> list[Any]:
    """All tensors of one library in arguments or a result, in order."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, (list, tuple)):
        return [one for item in value for one in tensors(item, kind)]
    if isinstance(value, dict):
        return [one for item in value.values() for one in tensors(item, kind)]
    return []


def described(value: Any) -> str:
    """A short description of arguments, with tensors by dtype and shape."""
    if isinstance(value, torch.Tensor):
        shape = ", ".join(map(str, value.shape))
        size = f"={value.item()}" if value.dim() == 0 and value.layout is torch.strided else ""
        return f"{str(value.dtype).removeprefix('torch.')}[{shape}]{size}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(described, value)) + ")"
    if isinstance(value, dict):
        return ", ".join(f"{key}={described(item)}" for key, item in value.items())
    return repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
