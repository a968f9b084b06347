"""The tensors in pickles of `torch.save`: views of storages, flat memory whose bytes stand elsewhere in the file.

Every number that describes a view is checked here, in integers of Python: a view never leaves its storage.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..backends.bool_bytes import as_bools
from ..base import dtypes, public_dtypes
from ..base.dtypes import NAMES, bool_
from ..base.errors import DTypeError, FileError
from ..core.parameter import Parameter
from ..core.tensor import Tensor
from ..core.tensor_base import Shape
from . import whole_modules
from .foreign_tensor import DTYPES, ForeignTensor
from .pickled_values import BUILD
from .unpickle import Global, Machine, RefusedError

HostArray = np.ndarray[Any, Any]
Place = Callable[[HostArray, str], Array]  # (an array on the host, its saved device) -> the array where it is to be
Read = Callable[[str, int, int], HostArray]  # (key, bytes, bytes of one number) -> the bytes of a storage
STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "Untyped": "uint8",
}  # fmt: skip
_QUANTIZED = {"QInt8": "int8", "QUInt8": "uint8", "QInt32": "int32"}
_FOREIGN = {"ComplexFloat": "complex64", "ComplexDouble": "complex128"}
_KINDS = STORAGES | _FOREIGN | _QUANTIZED
_AXES = 64  # of an array of NumPy
_ALL = dtypes.NAMED | DTYPES


class PickledTensors:
    """Reads pickles of a file: `read` finds the bytes of a storage, once for each; `place` puts them on a device.

    whole: whether the pickles may hold whole modules. Errors begin with `where`.
    """

    def __init__(self, where: str, place: Place, read: Read, whole: bool = False):
        self._where, self._place, self._read, self._whole = where, place, read, whole
        self._storages: dict[tuple[str, str], Tensor | ForeignTensor] = {}
        self._arrays: dict[str, Array] = {}
        self._versions: dict[str, list[int]] = {}

    def run(self, file: io.BytesIO) -> Any:
        """The value of the pickle at the position of `file`."""
        set_state = partial(whole_modules.set_state, self._where)
        return Machine(self._found, self._storage, self._where, set_state).run(file)

    def _found(self, name: str) -> Any:
        found = _find(name)
        if found is not None or (made := whole_modules.find(name)) is None:
            return found
        if not self._whole:
            cure = "pass weights_only=False, or save its state_dict()"
            raise FileError(self._where, "tensors, numbers, strings and plain containers", f"a whole {name}", cure)
        return made

    def _storage(self, identity: Any) -> Tensor | ForeignTensor:
        """A storage as a tensor of one axis."""
        if type(identity) is not tuple:
            raise TypeError(f"a {type(identity).__name__} as the name of a storage")
        kind, of, key, saved, elements, *part = identity
        if kind != "storage" or not isinstance(of, Global):
            raise RefusedError(f"an object of {getattr(of, 'name', type(of).__name__)}")
        if type(key) is not str or type(saved) is not str or type(elements) is not int:
            raise TypeError("a storage of another form")
        name = of.name.rpartition(".")[2].removesuffix("Storage")
        if name not in _KINDS:
            raise DTypeError(self._where, f"tensors of {', '.join(NAMES)}", of.name)
        if (key, name) not in self._storages:
            self._storages[key, name] = self._made(key, name, elements, saved)
        whole = self._storages[key, name]
        if part and type(part[0]) is tuple:  # a view of a storage, before PyTorch 0.4
            return _tensor(whole, part[0][1], (part[0][2],), (1,))
        return whole

    def _made(self, key: str, name: str, elements: int, saved: str) -> Tensor | ForeignTensor:
        dtype = _ALL[_KINDS[name]]
        if key not in self._arrays:
            read = self._read(key, elements * dtype.itemsize, dtype.itemsize // (2 if dtype.kind == "c" else 1))
            if elements * dtype.itemsize != len(read):
                raise ValueError(f"{len(read)} bytes for {elements} elements of storage {key}")
            if dtype == bool_:
                as_bools(read)
            self._arrays[key] = self._place(read, saved)
        if name in _QUANTIZED:
            return ForeignTensor(None, "quantized", (elements,))
        made = _as(self._arrays[key], dtype)
        if isinstance(made, Tensor):
            made._version_counter = self._versions.setdefault(key, made._version_counter)
        return made


def _find(name: str) -> Any:
    if name in _BUILD:
        return Global(name, _BUILD[name])
    if name.startswith("torch."):
        dtype = _ALL.get(name.removeprefix("torch."))
        return Global(name, None) if name.endswith("Storage") else dtype and public_dtypes.DTYPES[dtype]
    return None


def _as(flat: Array, dtype: np.dtype[Any]) -> Tensor | ForeignTensor:
    if dtype in DTYPES.values():
        values = backends.backend_of(flat).to_numpy(flat).view(dtype)
        return ForeignTensor(values, dtype.name, values.shape)
    if dtype == bool_ and flat.dtype != bool_ and bool((flat.view(np.uint8) > 1).any()):
        raise ValueError("bytes of bool that are neither 0 nor 1")
    return Tensor(flat.view(dtype))


def _tensor(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any = False, hooks: Any = None, bits: Any = None
) -> Any:
    if bits:
        raise RefusedError("a tensor that stands for its conjugate or its negative")
    if isinstance(storage, ForeignTensor):
        values = _view(storage.numpy(), offset, size, stride)
        return ForeignTensor(values, storage.format, values.shape)
    if not isinstance(storage, Tensor):
        raise TypeError(f"a tensor of a {type(storage).__name__}")
    out = Tensor(_view(storage.array, offset, size, stride))
    if _tracked(out, requires_grad):
        out.requires_grad = True
    out._version_counter = storage._version_counter
    return out


def _view(flat: Array, offset: Any, size: Any, stride: Any) -> Array:
    _check_view(flat, offset, size, stride)
    if isinstance(flat, np.ndarray):
        steps = [step * flat.itemsize for step in stride]
        return np.ndarray(size, flat.dtype, flat.view(np.uint8), offset * flat.itemsize, steps)
    if tuple(stride) == tuple(math.prod(size[axis + 1 :]) for axis in range(len(size))):
        return flat[offset : offset + math.prod(size)].reshape(size)
    here = backends.backend_of(flat)
    return here.asarray(np.ascontiguousarray(_view(here.to_numpy(flat), offset, size, stride)))


def _check_view(flat: Array, offset: Any, size: Any, stride: Any) -> None:
    # NumPy's own check computes with 64 bits, in which a product of size and stride may come out as 0.
    rows = all(isinstance(numbers, (tuple, list)) for numbers in (size, stride))
    if not rows or not len(size) == len(stride) <= _AXES:
        raise TypeError("sizes and strides of a tensor of another form")
    if not all(type(n) is int and 0 <= n < 2**63 for n in (offset, *size, *stride)):
        raise ValueError("a size, a stride or an offset that is none")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if flat.ndim != 1 or (last >= flat.size if all(size) else offset > flat.size):
        raise ValueError(f"a tensor that leaves its storage of {flat.size} elements")


def _tensor_of_dtype(
    storage: Any, offset: Any, size: Any, stride: Any, tracked: Any, hooks: Any, dtype: Any, bits: Any = None
) -> Any:
    if not isinstance(storage, Tensor) or not isinstance(dtype, public_dtypes.dtype):
        raise TypeError("a tensor of another form")
    whole = _as(storage.array, DTYPES.get(dtype.name) or dtypes.parse(dtype))
    if isinstance(whole, Tensor):
        whole._version_counter = storage._version_counter
    return _tensor(whole, offset, size, stride, tracked, hooks, bits)


def _parameter(data: Any, requires_grad: Any, *_: Any) -> Any:
    if isinstance(data, ForeignTensor):
        return data
    if not isinstance(data, Tensor):
        raise TypeError(f"a Parameter of a {type(data).__name__}")
    return Parameter(data, _tracked(data, requires_grad))


def _tracked(tensor: Tensor, wanted: Any) -> bool:
    if type(wanted) is not bool or (wanted and not tensor.is_floating_point()):
        raise TypeError(f"requires_grad of a tensor of {tensor.dtype.name}")
    return wanted


def _of_type(function: Any, kind: Any, arguments: Any, *_: Any) -> Any:
    """A tensor of a subclass, or with attributes of Python, which are left out."""
    if not isinstance(function, Global) or function.name not in _REBUILD:
        raise TypeError("a tensor of another form")
    if not isinstance(kind, Global) or kind.name not in _CLASSES:
        raise RefusedError(f"an object of {getattr(kind, 'name', type(kind).__name__)}")
    if type(arguments) is not tuple:
        raise TypeError("a tensor of another form")
    return _REBUILD[function.name](*arguments)


# Tensors of layouts that ampkit has not: their shape alone.


def _sparse(layout: Any, data: Any) -> ForeignTensor:
    sizes = [part for part in data if isinstance(part, Shape)] if type(data) is tuple else []
    if type(layout) is not str or not layout.startswith("torch.sparse_") or len(sizes) != 1:
        raise TypeError("a sparse tensor of another form")
    return ForeignTensor(None, layout.removeprefix("torch."), _shape(sizes[0]))


def _shape(size: Any) -> tuple[int, ...]:
    if not isinstance(size, (tuple, list)) or not all(type(n) is int and 0 <= n < 2**63 for n in size):
        raise TypeError("sizes of a tensor of another form")
    return tuple(size)


def _layout(name: Any) -> str:
    if type(name) is not str:
        raise TypeError("a layout of another form")
    return name


_REBUILD: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_dtype,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_qtensor": lambda storage, offset, size, *_: ForeignTensor(None, "quantized", _shape(size)),
    "torch._utils._rebuild_meta_tensor_no_storage": lambda dtype, size, *_: ForeignTensor(None, "meta", _shape(size)),
}
_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
_BUILD = BUILD | _REBUILD | dict.fromkeys(_CLASSES) | {"torch._tensor._rebuild_from_type_v2": _of_type}
_BUILD |= {"torch.serialization._get_layout": _layout}
_SCHEMES = ("tensor_affine", "channel_affine", "channel_affine_float_qparams")
_BUILD |= dict.fromkeys(f"torch.per_{scheme}" for scheme in _SCHEMES)
