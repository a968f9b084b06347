"""Write PyTorch's zip format: a pickle of protocol 2, and the bytes of each tensor's memory."""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Device
from ..base import public_dtypes
from ..base.dtypes import NAMED, name_of
from ..base.errors import DTypeError
from ..core.parameter import Parameter
from ..core.tensor import Tensor
from ..core.tensor_base import Shape
from ..nn.module import Module
from ..ops.tensor_info import data_ptr
from . import whole_modules
from .pickled_tensors import STORAGES

_STORAGE_OF = {dtype: name for name, dtype in STORAGES.items() if name != "Untyped"}
_HEADER = 30  # bytes before the name of a zip file's entry
_ALIGNMENT = 64  # bytes, as in PyTorch's files, so that a file can be mapped into memory


def encode(obj: Any) -> bytes:
    """The bytes of a file that `torch.load` reads, unless it holds a Module.

    Raises DTypeError for a value of a type that `save` does not take.
    """
    pickler, out = _Pickler(), io.BytesIO()
    try:
        pickler.put(obj, "")
    except RecursionError:
        raise DTypeError("save", "values that are nested less deeply", "an object in hundreds of others") from None
    with zipfile.ZipFile(out, "w") as archive:
        _add(archive, "data.pkl", b"\x80\x02" + pickler.written.getbuffer() + b".")
        _add(archive, "byteorder", sys.byteorder.encode())
        for i, tensor in enumerate(pickler.storages):
            values = backends.backend_of(tensor.array).to_numpy(tensor.array)
            _add(archive, f"data/{i}", np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        _add(archive, "version", b"3\n")
    return out.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: Any) -> None:
    entry = zipfile.ZipInfo(f"archive/{name}")  # dated 1980: equal objects give equal files
    begin = archive.fp.tell() + _HEADER + len(entry.filename) + 4  # type: ignore[union-attr]  # an open file
    entry.extra = struct.pack("<2sH", b"FB", -begin % _ALIGNMENT) + bytes(-begin % _ALIGNMENT)
    archive.writestr(entry, data)


class _Name(str):
    # A dotted name that the reader looks up.
    __slots__ = ()


class _Call(NamedTuple):
    # What makes a value: a name, called with arguments unless they are None; then items to set and a state.
    name: str
    arguments: tuple[Any, ...] | None = ()
    items: Iterable[tuple[Any, Any]] = ()
    state: Any = None


class _Pickler:
    # Emits opcodes of protocol 2 for known types alone. storages: a tensor for each memory that is to be stored.

    def __init__(self) -> None:
        self.written, self.storages = io.BytesIO(), list[Tensor]()
        self._keys: dict[Any, str] = {}  # of storages, by what tells their memory
        self._memo: dict[Any, int] = {}  # of texts, and of objects by their id
        self._held: list[Any] = []  # these objects, so that no others get their ids

    def put(self, value: Any, path: str) -> None:
        key = (type(value), value) if isinstance(value, str) else id(value)
        call = _call(value)
        if key in self._memo:
            self.written.write(b"j" + struct.pack("<I", self._memo[key]))
        elif call is not None:
            self._made(key, call, path)
        elif isinstance(value, str):
            self._remember(key, _text(value))
        elif value is None or isinstance(value, (int, float)):
            self.written.write(_number(value, path))
        elif isinstance(value, tuple):
            self._items(enumerate(value), path, b"t", named=False)
        elif isinstance(value, list):
            self._remember(key, b"]", value)
            self._items(enumerate(value), path, b"e", named=False)
        elif isinstance(value, Mapping):
            self._remember(key, b"}", value)
            self._items(value.items(), path, b"u")
        elif isinstance(value, Tensor):
            self._tensor(value, path)
            self._remember(key, b"", value)
        elif whole_modules.is_function(value):
            self.written.write(_text(_Name(whole_modules.name_of(value))))
        elif isinstance(value, Module) or whole_modules.is_plain(type(value)):
            self._made(key, _Call(whole_modules.name_of(value), state=vars(value)), path)
        else:
            raise _unknown(value, path)

    def _remember(self, key: Any, written: bytes, value: Any = None) -> None:
        self.written.write(written + b"r" + struct.pack("<I", len(self._held)))
        self._memo[key] = len(self._held)
        self._held.append(value)

    def _items(self, items: Iterable[tuple[Any, Any]], path: str, end: bytes, named: bool = True) -> None:
        self.written.write(b"(")
        for name, value in items:
            below = f"{path}.{name}" if path else str(name)
            if named:
                self.put(name, f"a key of {path or 'the top'}")
            self.put(value, below)
        self.written.write(end)

    def _made(self, key: Any, call: _Call, path: str) -> None:
        self.put(_Name(call.name), path)
        if call.arguments is not None:
            self.put(call.arguments, path)
            self._remember(key, b"R", call)
        if call.items:
            self._items(call.items, path, b"u")
        if call.state is not None:
            self.put(call.state, path)
            self.written.write(b"b")

    def _tensor(self, tensor: Tensor, path: str) -> None:
        if isinstance(tensor, Parameter):
            arguments = tensor.detach(), tensor.requires_grad, OrderedDict[str, Any]()
            self._made(None, _Call("torch._utils._rebuild_parameter", arguments), path)
            return
        place = tensor.device.type if tensor.device.type == "cpu" else f"cuda:{tensor.device.index or 0}"
        memory = place, tensor.dtype.name, data_ptr(tensor), tensor.shape, tensor.array.strides
        if memory not in self._keys:
            self._keys[memory] = str(len(self.storages))
            self.storages.append(tensor)
        known = _STORAGE_OF.get(tensor.dtype.name)  # PyTorch's newer dtypes have no storage of their own
        self.put(_Name(f"torch._utils._rebuild_tensor_v{2 if known else 3}"), path)
        self.written.write(b"(")
        storage = _Name(f"torch.{known}Storage" if known else "torch.storage.UntypedStorage")
        self.put(("storage", storage, self._keys[memory], place, tensor.numel()), path)
        self.written.write(b"Q")
        strides = tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.ndim))
        view: list[Any] = [0, tuple(tensor.shape), strides, tensor.requires_grad, OrderedDict[str, Any]()]
        for argument in view if known else [*view, tensor.dtype]:
            self.put(argument, path)
        self.written.write(b"tR")


def _call(value: Any) -> _Call | None:
    """What makes a value that pickles have no opcode for; None for one that they have, and for a tensor."""
    if type(value) in _BUILT_IN:  # which most are
        return None
    found = next((made for kind, made in _CALLS.items() if isinstance(value, kind)), None)
    return None if found is None else found(value)


_CALLS: dict[Any, Callable[[Any], _Call | None]] = {
    Enum: lambda v: _Call(whole_modules.name_of(v), (v.value,)),
    Device: lambda v: _Call("torch.device", (v.type,) if v.index is None else (v.type, v.index)),
    Shape: lambda v: _Call("torch.Size", (tuple(v),)),
    public_dtypes.dtype: lambda v: _Call(f"torch.{v.name}", None) if v.name in NAMED else None,
    np.dtype: lambda v: _numpy_dtype(v) if v.isnative else None,
    np.generic: lambda v: _scalar(v) if v.dtype.kind in _NUMBERS else None,
    bytes: lambda v: _Call("_codecs.encode", (v.decode("latin1"), "latin1")),
    bytearray: lambda v: _Call("builtins.bytearray", (bytes(v),)),
    complex: lambda v: _Call("builtins.complex", (v.real, v.imag)),
    range: lambda v: _Call("builtins.range", (v.start, v.stop, v.step)),
    slice: lambda v: _Call("builtins.slice", (v.start, v.stop, v.step)),
    np.ndarray: lambda v: _array(v) if v.dtype.kind in _NUMBERS else None,
    set: lambda v: _Call("builtins.set", (list(v),)),
    frozenset: lambda v: _Call("builtins.frozenset", (list(v),)),
    deque: lambda v: _Call("collections.deque", (_need_shallow(v, "deque"), v.maxlen)),
    Counter: lambda v: _Call("collections.Counter", (dict(v),)),
    OrderedDict: lambda v: _Call("collections.OrderedDict", (), v.items(), _metadata(v)),
    defaultdict: lambda v: _default_dict(v),
    Namespace: lambda v: _Call("argparse.Namespace", (), (), vars(v)),
    PurePath: lambda v: _Call(f"pathlib.{type(v).__name__}", v.parts),
}
_BUILT_IN = {str, int, float, bool, type(None), tuple, list, dict, Tensor, Parameter}
_NUMBERS = "biufc"  # kinds of NumPy's dtypes
_FACTORIES = {kind: _Name(f"builtins.{kind.__name__}") for kind in (int, float, bool, str, list, tuple, dict, set)}


def _metadata(values: Any) -> dict[str, Any] | None:
    # What PyTorch keeps of a state_dict beside its entries.
    return {"_metadata": values._metadata} if hasattr(values, "_metadata") else None


def _numpy_dtype(dtype: np.dtype[Any]) -> _Call | None:
    if dtype.kind not in _NUMBERS:  # bfloat16, say, which NumPy lacks; None for one that no tensor has
        return _Call(f"torch.{name_of(dtype)}", None) if name_of(dtype) in NAMED else None
    name, order = dtype.str[1:], dtype.str[0]
    return _Call("numpy.dtype", (name, False, True), (), (3, order, None, None, None, -1, -1, 0))


def _native(values: Any) -> Any:
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _scalar(value: np.generic) -> _Call:
    return _Call("numpy._core.multiarray.scalar", (_native(value).dtype, _native(value).tobytes()))


def _array(values: np.ndarray[Any, Any]) -> _Call:
    values = _native(values)
    state = 1, values.shape, values.dtype, False, values.tobytes()
    return _Call("numpy._core.multiarray._reconstruct", (_Name("numpy.ndarray"), (0,), b"b"), (), state)


def _default_dict(values: defaultdict[Any, Any]) -> _Call:
    factory = values.default_factory
    if factory is not None and factory not in _FACTORIES:
        got = f"one of {getattr(factory, '__name__', factory)}"
        raise DTypeError("save", "a defaultdict of a built-in type", got, "save dict(values)")
    _need_shallow(values.values(), "defaultdict")
    return _Call("collections.defaultdict", (factory and _FACTORIES[factory],), values.items())


def _need_shallow(values: Iterable[Any], kind: str) -> list[Any]:
    # `load` refuses what Python could free by recursion in C alone.
    if any(isinstance(value, (deque, defaultdict)) for value in values):
        raise DTypeError("save", f"a {kind} of other values", "one of deques or defaultdicts", "save dicts and lists")
    return list(values)


def _text(value: str) -> bytes:
    if isinstance(value, _Name):
        module, _, name = value.rpartition(".")
        return f"c{module}\n{name}\n".encode()
    text = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(text)) + text


def _number(value: float | None, path: str) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    digits = pickle.encode_long(value)
    if len(digits) > 255:
        raise DTypeError("save", "integers of at most 255 bytes", f"one of {len(digits)} bytes at {path!r}")
    return b"\x8a" + bytes([len(digits)]) + digits


def _unknown(value: Any, path: str) -> DTypeError:
    cure = "wrap arrays with ampkit.tensor(...)" if hasattr(value, "__array__") else None
    cure = "save its state_dict()" if hasattr(value, "state_dict") else cure
    kinds = "tensors, numbers, strings and plain containers"
    return DTypeError("save", kinds, f"a {type(value).__name__} at {path or 'the top'!r}", cure)
