"""Tensors from data: numbers, lists, arrays, buffers, class labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DTypeError, RangeError
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor

from ..argument_checks import check_addressable

__all__ = ["as_tensor", "asarray", "from_numpy", "frombuffer", "one_hot", "scalar_tensor", "tensor"]


def as_tensor(data: Any, dtype: Any = None, device: str | None = None) -> Tensor:
    """`data` as a tensor, without a copy where it is a tensor or an array of this dtype and device already."""
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
    """A tensor over the memory of a NumPy array: a change of one shows in the other.

    Raises DTypeError for values that are no numbers.
    """
    if not isinstance(array, np.ndarray):
        raise DTypeError("from_numpy", "a NumPy array", type(array).__name__, "use ampkit.tensor(...)")
    if dtypes.parse(array.dtype) != array.dtype:
        raise DTypeError("from_numpy", "the machine's byte order", str(array.dtype), "use ampkit.tensor(...)")
    made = Tensor(array)
    made.exposed()
    return made


def asarray(
    obj: Any, *, dtype: Any = None, device: str | None = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """`obj` as a tensor, without a copy where none is needed, or with one by copy=True; off the tape.

    requires_grad: asked of the result. Raises ArgumentError for copy=False, which cannot be promised.
    """
    if copy is False:
        raise ArgumentError("asarray", "copy None or True", "False", "use ampkit.from_numpy for a NumPy array")
    made = tensor(obj, dtype, device) if copy else as_tensor(obj, dtype, device).detach()
    return made.requires_grad_(requires_grad)


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A tensor [n] over the memory of a buffer, such as bytes: count elements (-1: all) from `offset` bytes on.

    Read-only memory makes a tensor that refuses changes in place. Raises DTypeError for something that is no buffer,
    ArgumentError where its size does not fit.
    """
    try:
        found = np.frombuffer(buffer, dtypes.parse(dtype), count, offset)
    except ValueError as error:
        raise ArgumentError("frombuffer", "a buffer that holds these elements", str(error)) from None
    except (TypeError, BufferError):
        raise DTypeError("frombuffer", "a buffer", f"a {type(buffer).__name__}") from None
    return from_numpy(found).requires_grad_(requires_grad)


def scalar_tensor(
    s: Tensor | float, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A tensor [] of a number, float32 unless told otherwise."""
    return tensor(s, dtypes.float32 if dtype is None else dtype, device, requires_grad)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Rows of zeros with a one at the class: [...] integers -> [..., num_classes] int64.

    num_classes=-1 counts them: the largest class + 1. Raises RangeError for a class outside [0, num_classes).
    """
    labels = tensor.array
    if labels.dtype.kind not in "iu":
        raise DTypeError("one_hot", "integers", labels.dtype.name)
    classes = (int(labels.max()) + 1 if labels.size else 0) if num_classes == -1 else num_classes

    check_addressable("one_hot", (labels.size, max(classes, 0)))

    def fail(value: int, position: Any) -> None:
        raise RangeError("one_hot", f"classes from 0 to {classes - 1}", f"{value} at position {position}")

    backends.backend_of(labels).raise_if(labels, (labels < 0) | (labels >= classes), fail)
    return Tensor((labels[..., None] == np.arange(classes, like=labels)).astype(np.int64))
