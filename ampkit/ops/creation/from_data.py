"""Tensors from data: numbers, lists, arrays, buffers, class labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.bool_bytes import need_bool_bytes
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DTypeError
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor

from ..argument_checks import check_addressable, check_values

__all__ = ["as_tensor", "asarray", "from_numpy", "frombuffer", "one_hot", "scalar_tensor", "tensor"]

_MANY = 1 << 12  # elements of one-hot vectors; comparing more labels with each class takes longer than marking it


def as_tensor(data: Any, dtype: Any = None, device: str | None = None) -> Tensor:
    """Convert `data` to a tensor; no copy if it is a tensor or array of this dtype and device already."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    if (
        isinstance(data, np.ndarray)
        and (dtype is None or data.dtype == dtypes.parse(dtype))
        and device in (None, "cpu")
    ):
        return from_numpy(data)
    return tensor(data, dtype, device)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor that shares the memory of a NumPy array.

    Of an array of a subclass (np.matrix, np.memmap) it takes the memory alone. Raises DTypeError for anything but an
    array of numbers in native byte order, ArgumentError for bools whose bytes are neither 0 nor 1, and for a
    np.ma.MaskedArray that hides elements.
    """
    if not isinstance(array, np.ndarray):
        raise DTypeError("from_numpy", "a NumPy array", type(array).__name__, "use ampkit.tensor(...)")
    return _shared("from_numpy", backends.plain(array, "from_numpy"))


def _shared(where: str, array: np.ndarray[Any, Any]) -> Tensor:
    need_bool_bytes(where, array)
    made = Tensor(array)
    made.exposed()
    return made


def asarray(
    obj: Any, *, dtype: Any = None, device: str | None = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """Convert `obj` to a tensor off the tape; copies only if needed, or always with copy=True.

    Raises ArgumentError for copy=False, which cannot be guaranteed.
    """
    if copy is False:
        raise ArgumentError("asarray", "copy None or True", "False", "use ampkit.from_numpy for a NumPy array")
    made = tensor(obj, dtype, device) if copy else as_tensor(obj, dtype, device).detach()
    return made.requires_grad_(requires_grad)


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A tensor [n] over the memory of a buffer, such as bytes: `count` elements (-1: all) starting at byte `offset`.

    Read-only memory gives a tensor that raises on in-place ops. Raises DTypeError for an object that is not a buffer,
    ArgumentError if the buffer is too small, or for bools whose bytes are neither 0 nor 1.
    """
    try:
        found = np.frombuffer(buffer, dtypes.parse(dtype), count, offset)
    except ValueError as error:
        raise ArgumentError("frombuffer", "a buffer that holds these elements", str(error)) from None
    except (TypeError, BufferError):
        raise DTypeError("frombuffer", "a buffer", f"a {type(buffer).__name__}") from None
    return _shared("frombuffer", found).requires_grad_(requires_grad)


def scalar_tensor(
    s: Tensor | float, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A 0-d tensor of a number, float32 by default."""
    return tensor(s, dtypes.default() if dtype is None else dtype, device, requires_grad)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """One-hot vectors of class indices: [...] integers -> [..., num_classes] int64.

    num_classes=-1 means the largest class + 1. Raises RangeError for a class outside [0, num_classes).
    """
    labels = tensor.array
    if labels.dtype.kind not in "iu":
        raise DTypeError("one_hot", "integers", labels.dtype.name)
    classes = (int(labels.max()) + 1 if labels.size else 0) if num_classes == -1 else num_classes
    check_addressable("one_hot", (labels.size, max(classes, 0)))
    check_values("one_hot", labels, (labels < 0) | (labels >= classes), f"classes from 0 to {classes - 1}")
    if isinstance(labels, np.ndarray) and labels.flags.c_contiguous and labels.size * classes >= _MANY:
        out = backends.cpu.full((*labels.shape, max(int(classes), 0)), np.zeros((), np.int64))
        out.reshape(-1)[np.arange(labels.size) * out.shape[-1] + labels.reshape(-1).astype(np.int64)] = 1
        return Tensor(out)
    return Tensor((labels[..., None] == np.arange(classes, like=labels)).astype(np.int64))
