"""Facts about a tensor that PyTorch's scripts ask for: kind, place, size."""

from __future__ import annotations

from typing import Any

from ..base.dtypes import is_float
from ..base.errors import DTypeError
from ..core.tensor import Tensor
from ..core.torch_compat import strided

__all__ = ["get_device", "is_nonzero", "is_same_size", "is_signed"]


def nelement(self: Tensor) -> int:
    """The number of elements."""
    return self.numel()


def ndimension(self: Tensor) -> int:
    """The number of axes."""
    return self.ndim


def get_device(self: Tensor) -> int:
    """The number of its GPU; -1 on the CPU."""
    return -1 if self.device.type == "cpu" else self.device.index or 0


def is_complex(self: Tensor) -> bool:
    """False: there are no complex tensors."""
    return False


def is_signed(self: Tensor) -> bool:
    """Whether its dtype has negative numbers."""
    return is_float(self.dtype) or self.dtype.kind == "i"


def is_nonzero(self: Tensor) -> bool:
    """Whether the one element is not 0; waits for the device. Raises ShapeError for more elements or none."""
    return bool(self.item())


def is_same_size(self: Tensor, other: Tensor) -> bool:
    """Whether another tensor has this shape. Raises DTypeError for anything else."""
    if not isinstance(other, Tensor):
        raise DTypeError("is_same_size", "a Tensor for `other`", type(other).__name__)
    return self.shape == other.shape


def is_pinned(self: Tensor) -> bool:
    """False: memory of the CPU is not pinned here."""
    return False


def pin_memory(self: Tensor) -> Tensor:
    """The tensor itself: copies to a device do not need pinned memory here."""
    return self


def data_ptr(self: Tensor) -> int:
    """The address of the first element."""
    on_host = getattr(self.array, "__array_interface__", None)
    return int(self.array.data.ptr if on_host is None else on_host["data"][0])


def detach_(self: Tensor) -> Tensor:
    """Take the tensor off the tape, in place: from now on it is a leaf that requires no grad."""
    self.edge = None
    return self


METHODS = [
    nelement, ndimension, get_device, is_complex, is_signed, is_nonzero, is_same_size, is_pinned, pin_memory, data_ptr,
    detach_,
]  # fmt: skip
PROPERTIES: dict[str, Any] = {
    "is_cpu": lambda self: self.device.type == "cpu",
    "is_cuda": lambda self: self.device.type == "cuda",
    "is_sparse": lambda self: False,
    "is_quantized": lambda self: False,
    "is_meta": lambda self: False,
    "layout": lambda self: strided,
}
