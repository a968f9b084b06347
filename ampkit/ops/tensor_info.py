"""Properties of tensors and dtypes: kind, size, device, type promotion."""

from __future__ import annotations

from typing import Any

from ampkit.base.dtypes import DIFFERENTIABLE, bool_, default, is_float, parse, promote, set_default
from ampkit.base.errors import DTypeError, StateError
from ampkit.base.memory_format import strided
from ampkit.base.public_dtypes import DTYPES, dtype
from ampkit.core import storage
from ampkit.core.arguments import without_numpy
from ampkit.core.cast_plan import result_type as agreed
from ampkit.core.tensor import Tensor

__all__ = [
    "can_cast", "get_default_dtype", "get_device", "is_complex", "is_floating_point", "is_nonzero", "is_same_size",
    "is_signed", "is_tensor", "numel", "promote_types", "result_type",
    "set_default_dtype",
]  # fmt: skip


def nelement(self: Tensor) -> int:
    """The number of elements."""
    return self.numel()


def to_dense(self: Tensor, dtype: Any = None, *, masked_grad: bool | None = None) -> Tensor:
    """The tensor itself, which is dense, cast to `dtype`. masked_grad, for sparse tensors, changes nothing."""
    return self if dtype is None else self.to(dtype)


def ndimension(self: Tensor) -> int:
    """The number of axes."""
    return self.ndim


def get_device(self: Tensor) -> int:
    """The index of the tensor's GPU; -1 on the CPU."""
    return -1 if self.device.type == "cpu" else self.device.index or 0


def is_complex(input: Tensor) -> bool:
    """False: there are no complex tensors."""
    return False


def is_signed(self: Tensor) -> bool:
    """Whether the dtype is signed."""
    return is_float(self.array.dtype) or self.array.dtype.kind == "i"


def is_nonzero(self: Tensor) -> bool:
    """Whether the only element is not 0; waits for the device. Raises ShapeError unless there is one element."""
    return bool(self.item())


def is_same_size(self: Tensor, other: Tensor) -> bool:
    """Whether another tensor has this shape. Raises DTypeError for anything else."""
    if not isinstance(other, Tensor):
        raise DTypeError("is_same_size", "a Tensor for `other`", type(other).__name__)
    return self.shape == other.shape


def is_pinned(self: Tensor) -> bool:
    """False: ampkit does not pin host memory."""
    return False


def pin_memory(self: Tensor) -> Tensor:
    """The tensor itself: ampkit does not pin host memory."""
    return self


def is_inference(self: Tensor) -> bool:
    """False: tensors made in `inference_mode` are like those made in `no_grad`."""
    return False


def data_ptr(self: Tensor) -> int:
    """The address of the first element in its device's memory; 0 without elements."""
    return storage.address(self.array)


def untyped_storage(self: Tensor) -> storage.UntypedStorage:
    """The memory that the tensor shares with its views; of a parameter in an arena, its segment."""
    return storage.of_array(self.array, self.exposed)


def _is_view(self: Tensor) -> bool:
    """Whether it shows the memory of another tensor, taken where that is on the tape or may get onto it."""
    return self._view_links is not None and self._view_links.parent is not None


def _base(self: Tensor) -> Tensor | None:
    """The tensor whose memory a view shows, which is no view itself; None for what is no view."""
    at = self
    while at._view_links is not None and at._view_links.parent is not None:
        at = at._view_links.parent
    return None if at is self else at


def detach_(self: Tensor) -> Tensor:
    """Detach the tensor from the tape in place: it becomes a leaf that does not require grad.

    Raises StateError for a view on the tape, whose changes would not reach the gradients of what it is a view of.
    """
    if self._tape_edge is not None and _is_view(self):
        raise StateError("detach_", "a tensor that is no view", "a view", "use .detach()")
    self._tape_edge = None
    return self


# PyTorch's further devices: `is_xpu` and its like are False.
OTHER_DEVICES = ("ipu", "maia", "mkldnn", "mps", "mtia", "nested", "vulkan", "xla", "xpu")

METHODS = [
    nelement, ndimension, get_device, is_complex, is_signed, is_nonzero, is_same_size, is_pinned, pin_memory,
    is_inference, data_ptr, detach_, to_dense, untyped_storage, _is_view,
]  # fmt: skip

PROPERTIES: dict[str, Any] = {
    "is_cpu": lambda self: self.device.type == "cpu",
    "is_cuda": lambda self: self.device.type == "cuda",
    "is_sparse": lambda self: False,
    "is_sparse_csr": lambda self: False,
    "is_quantized": lambda self: False,
    "is_meta": lambda self: self.device.type == "meta",
    **{f"is_{name}": lambda self: False for name in OTHER_DEVICES},
    "layout": lambda self: strided,
    "_base": _base,
}


def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()


def is_floating_point(input: Tensor) -> bool:
    """Whether the elements are floating-point numbers. Raises DTypeError for anything but a Tensor."""
    if not isinstance(input, Tensor):
        raise DTypeError("is_floating_point", "a Tensor", type(input).__name__)
    return input.is_floating_point()


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a Tensor."""
    return isinstance(obj, Tensor)


def get_default_dtype() -> dtype:
    """The dtype of tensors made from Python floats: float32, or what `set_default_dtype` says."""
    return DTYPES[default()]


def set_default_dtype(d: Any) -> None:
    """Make tensors from Python floats, creation functions and layers in dtype `d` where none is asked for.

    Integers that an op turns into floats take it too: `arange(3) / 2`. Raises DTypeError for anything but a
    floating-point dtype.
    """
    set_default(d)


def promote_types(type1: Any, type2: Any) -> dtype:
    """The dtype to which tensors (with axes) of two dtypes are promoted."""
    return DTYPES[promote(parse(type1), parse(type2))]


def can_cast(from_: Any, to: Any) -> bool:
    """Whether an in-place op may store a result of dtype from_ in dtype to: not floats in integers, nothing in bool."""
    ranks = [2 if d in DIFFERENTIABLE else int(d != bool_) for d in map(parse, (from_, to))]
    return ranks[0] <= ranks[1]


def result_type(tensor1: Tensor | float, tensor2: Tensor | float) -> dtype:
    """The promoted dtype of two tensors or numbers; a number or 0-d tensor only counts if its kind is higher."""
    return DTYPES[agreed([_entry(tensor1), _entry(tensor2)])]


def _entry(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.array.dtype if value.ndim else (value.array.dtype,)
    kind = type(without_numpy(value))
    if kind not in (bool, int, float):
        raise DTypeError("result_type", "Tensors and numbers", kind.__name__)
    return kind
