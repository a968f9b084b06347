"""TensorBase: a tensor's metadata, and its values as NumPy arrays, Python numbers and text."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import backends
from ..backends import Array, Device
from ..base import public_dtypes
from ..base.byte_sizes import bytes_in_words
from ..base.dtypes import NARROW, bool_, default, float32, int64, is_float
from ..base.errors import DTypeError, NoLengthError, RangeError, ShapeError, StateError, switch
from ..base.formats import FORMATS, is_packed
from ..base.html import heading, preformatted
from ..base.memory_format import contiguous_format, is_stored_as, need_format
from ..base.missing_names import missing_attribute
from ..base.tensor_text import tensor_text, values_in_words
from .autograd.grad_mode import is_grad_enabled
from .capture.recorder import recorders
from .dispatch import overrides

if TYPE_CHECKING:
    from .autograd.node import Node
    from .tensor import Tensor


_SUMMARIZED = 1 << 26  # bytes: a notebook shows no range of the values of a larger tensor, which takes seconds


class Shape(tuple[int, ...]):
    """A tensor's shape: a tuple with PyTorch's `numel()`."""

    def numel(self) -> int:
        """The number of elements."""
        return int(np.prod(self, dtype=np.int64))


class ReadAlias:
    """Another name of an attribute, to read it; what a script assigns to it is the script's own."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        return self if instance is None else getattr(instance, self._name)


class TensorType(type):
    """The class of Tensor and of its subclasses."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            # what is looked up last: a method of PyTorch that ampkit lacks
            raise missing_attribute("torch.Tensor", cls, name)


def note_host_read(tensor: Any) -> None:
    """Tell recorders that the values of a tensor are read on the host."""
    for recorder in recorders:
        recorder.read_on_host(tensor)


class TensorBase:
    """The read-only methods of Tensor."""

    __slots__ = ()
    _sharding: Any = None  # of a tensor whose rows ranks share out (see distributed/fsdp)
    _stages: Any = None  # of a parameter, where ranks have a model's parameters together (see distributed/pipelining)
    _shards: Any = None  # of a parameter whose layer is computed in shards: (axis, blocks, how many)
    _norm_by_rows = False  # of a parameter whose norm has bits that do not depend on who has which rows (optim/flat)

    array: Array
    _array: Array  # the same, for code that reads no elements (see `guard_reads` in tensor.py)
    requires_grad: bool

    def _from_state(self, entry: Any) -> Any:
        """A state that `_of_state`, or an optimizer without ranks, has made, as the tensor's optimizer keeps it."""
        return entry

    def _of_state(self, entry: Any) -> Any:
        """An optimizer's state of this parameter, as `state_dict` shows it."""
        return entry

    @property
    def _tape_node(self) -> Node | None:
        """See Tensor."""
        raise NotImplementedError

    def exposed(self) -> Array:
        raise NotImplementedError

    # metadata

    @property
    def shape(self) -> Shape:
        return Shape(self._array.shape)

    @property
    def dtype(self) -> public_dtypes.dtype:
        return public_dtypes.DTYPES[self._array.dtype]

    @property
    def device(self) -> Device:
        return Device(backends.backend_of(self._array).device_of(self._array))

    @property
    def ndim(self) -> int:
        return self._array.ndim

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    @property
    def itemsize(self) -> int:
        return self._array.itemsize

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the length of axis `dim`. Raises RangeError for an axis that the tensor does not have."""
        if dim is not None and (type(dim) is not int or not -self.ndim <= dim < self.ndim):
            raise RangeError("size", f"dim as an integer from {-self.ndim} to {self.ndim - 1}", repr(dim))
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """The number of elements."""
        return self._array.size

    def element_size(self) -> int:
        """The size of one element in bytes."""
        return self.itemsize

    def stride(self, dim: int | None = None) -> Any:
        """The strides in elements, of all axes or of `dim`. Raises DTypeError or RangeError for another `dim`."""
        steps = tuple(s // self.itemsize for s in self._array.strides)
        if dim is None:
            return steps
        if not isinstance(dim, (int, np.integer)):
            raise DTypeError("stride", "dim as an integer", repr(dim)[:80])
        if not -len(steps) <= dim < len(steps):
            raise RangeError("stride", f"dim from {-len(steps)} to {len(steps) - 1}", f"{dim}")
        return steps[dim]

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def is_contiguous(self, memory_format: Any = contiguous_format) -> bool:
        """Whether the memory is in that format, by default row-major. Raises ArgumentError for an unknown one."""
        return is_stored_as(self._array, need_format("is_contiguous", memory_format))

    # conversions

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """The values as a NumPy array, which shares the memory of a CPU tensor. bfloat16 and the 8-bit formats are
        those of ml_dtypes.

        Raises StateError for a tensor that requires grad where operations are recorded, unless force=True, DTypeError
        for float4_e2m1fn_x2, whose pairs NumPy has no dtype for.
        """
        self._need_values_for_numpy(force)
        note_host_read(self)
        return self._of_numpy(backends.backend_of(self.exposed()).to_numpy(self.array))

    def _of_numpy(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if values.dtype not in NARROW:
            return values
        if is_packed(values.dtype):
            cure = "use x.view(ampkit.uint8).numpy(), or ampkit.ops.cast_to(x, ampkit.float32).numpy()"
            raise DTypeError("numpy()", "a tensor of one value per element", self.dtype.name, cure)
        return values.view(FORMATS[values.dtype].values)

    def _numbers_on_host(self, array: Array) -> np.ndarray[Any, Any]:
        """Elements as numbers of NumPy: of float4_e2m1fn_x2 pairs [..., 2], of other formats below 16 bits float32."""
        values = backends.backend_of(array).to_numpy(array)
        if values.dtype not in NARROW:
            return values
        codes = values.view(np.uint8)[..., None] if is_packed(values.dtype) else values.view(np.uint8)
        return backends.cpu.decode(codes, values.dtype, float32)

    def _need_values_for_numpy(self, force: bool) -> None:
        if self.requires_grad and not switch("numpy()", "force", force) and is_grad_enabled():
            raise StateError("numpy()", "a tensor that requires no grad", "one that does", "use .detach().numpy()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy or (copy is None and dtype is not None and dtype != self.array.dtype):  # new memory
            self._need_values_for_numpy(force=False)
            note_host_read(self)
            return np.array(self._of_numpy(backends.backend_of(self.array).to_numpy(self.array)), dtype=dtype)
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def item(self) -> Any:
        """The value of a tensor of one element as a Python number; waits for the device. Else raises ShapeError."""
        if self.array.size != 1 or is_packed(self.array.dtype):
            raise ShapeError("item()", "a tensor of one element", f"{self.dtype.name} of shape {tuple(self.shape)}")
        note_host_read(self)
        return self._numbers_on_host(self.array).item()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 else format(str(self), spec)

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers; waits for the device."""
        note_host_read(self)
        return self._numbers_on_host(self.array).tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        if is_float(self.array.dtype):
            raise DTypeError("index", "an integer tensor", self.dtype.name)
        return int(self.item())

    def __len__(self) -> int:
        if not self.ndim:
            raise NoLengthError("len() of a 0-d tensor")
        return int(self._array.shape[0])

    def __iter__(self) -> Iterator[Tensor]:
        if not self.ndim:
            raise NoLengthError("iteration over a 0-d tensor")
        return (self[i] for i in range(len(self)))  # type: ignore[index]  # a Tensor

    def __repr__(self) -> str:
        name = type(self).__name__ if overrides.takes_over(type(self)) else "tensor"
        array, levels = self.array, 0
        while hasattr(array, "level"):  # of the samples of a `vmap`: those of all, as PyTorch shows them
            array, levels = array.data, levels + 1
        text = tensor_text(array, self._numbers_on_host, self._suffixes(), name)
        for level in range(levels):
            text = f"BatchedTensor(lvl={level + 1}, bdim=0, value=\n    {text}\n)"
        return text

    def _repr_html_(self) -> str:
        if hasattr(self.array, "level"):
            return preformatted(repr(self))
        title = f"{type(self).__name__} {list(self.shape)} {self.dtype.name} on {self.device}"
        size = bytes_in_words(self.array.nbytes) if self.numel() else ""
        words = values_in_words(self._numbers_on_host(self.array)) if self.array.nbytes <= _SUMMARIZED else ""
        return heading(title) + f"<br>{escape(', '.join(filter(None, [size, words])))}" + preformatted(repr(self))

    def _suffixes(self) -> Iterator[str]:
        """What the repr says beside the values: PyTorch's words, in its order."""
        if self.device.type != "cpu":
            yield f"device='{self.device}'"
        if (not self.numel() and self.ndim != 1) or is_packed(self.array.dtype):
            yield f"size={tuple(self.shape)}"
        plain = (default(), int64, bool_) if self.numel() else (default(),)
        if self.array.dtype not in plain:
            yield f"dtype={self.dtype}"
        if self._tape_node is not None:
            yield f"grad_fn=<{self._tape_node.name()}>"
        elif self.requires_grad:
            yield "requires_grad=True"
