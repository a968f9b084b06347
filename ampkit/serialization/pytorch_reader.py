"""Read the files of PyTorch's `torch.save`: its zip format, and the format of PyTorch before 1.6.

A file holds a pickle and the bytes of each storage, the flat memory that tensors are views of.
"""

from __future__ import annotations

import io
import math
import sys
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .. import backends
from ..backends import Array, Device
from ..base.dtypes import NAMES
from ..base.errors import DTypeError, FileError
from ..core.parameter import Parameter
from ..core.tensor import Tensor
from ..core.tensor_base import Shape
from . import whole_modules
from .unpickle import Global, Machine, keys

HostArray = np.ndarray[Any, Any]
Place = Callable[[HostArray, str], Array]  # (an array on the host, its saved device) -> the array where it is to be
_Read = Callable[[str, int, int], HostArray]  # (key, elements, bytes of one) -> the bytes of a storage
STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "Untyped": "uint8",
}  # fmt: skip
_MAGIC = 0x1950A86A20F9469CFC6C  # the first value in a file of PyTorch before 1.6
_CHUNK = 2**22  # bytes


def load_zip(file: BinaryIO, where: str, place: Place, whole: bool = False) -> Any:
    """The object in a zip file of PyTorch. whole: whether it may hold whole modules.

    Raises FileError or DTypeError, which begin with `where`.
    """
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        folder = next((name[: -len("data.pkl")] for name in entries if name.endswith("/data.pkl")), None)
        script = folder is not None and f"{folder}constants.pkl" in entries
        if folder is None or script or any(entry.compress_type for entry in entries.values()):
            got = (
                ("a TorchScript program", "load it in PyTorch and save its state_dict()")
                if script
                else ("another zip file",)
            )
            raise FileError(where, "a file of torch.save", *got)
        if sum(entry.file_size for entry in entries.values()) > size:
            raise FileError(where, "a whole file of torch.save", f"one of {size} bytes that lists more")
        order = archive.read(f"{folder}byteorder").decode() if f"{folder}byteorder" in entries else "little"

        def read(key: str, elements: int, itemsize: int) -> HostArray:
            values = _bytes(archive, entries[f"{folder}data/{key}"])
            return values if order == sys.byteorder else values.view(f"u{itemsize}").byteswap().view(np.uint8)

        return _Reader(where, place, read, whole).run(io.BytesIO(archive.read(f"{folder}data.pkl")))


def _bytes(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> HostArray:
    values, at = np.empty(entry.file_size, np.uint8), 0
    with archive.open(entry) as file:
        while part := file.read(_CHUNK):
            values[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
    return values


def load_legacy(file: BinaryIO, where: str, place: Place, whole: bool = False) -> Any:
    """The object in a file of PyTorch before 1.6: pickles of the object and of the storages' keys, then their bytes."""
    file = io.BytesIO(file.read())  # a read from it takes no more memory than there are bytes
    left, storages = len(file.getbuffer()), dict[str, HostArray]()

    def reserve(key: str, elements: int, itemsize: int) -> HostArray:
        nonlocal left
        left -= elements * itemsize
        if elements < 0 or left < 0:
            raise FileError(where, "a whole file of torch.save", "one that lists more bytes than it has")
        storages[key] = np.zeros(elements * itemsize, np.uint8)
        return storages[key]

    first = _Reader(where, lambda array, saved: array, reserve, whole)
    if first.run(file) != _MAGIC:
        raise FileError(where, "a file of torch.save", "another pickle")
    first.run(file)  # the version of the format
    first.run(file)  # the sizes of types in C
    begin = file.tell()
    first.run(file)
    stored = first.run(file)
    for key in stored:
        elements = int.from_bytes(file.read(8), "little")
        if len(storages[key]) % max(elements, 1) or file.readinto(storages[key].data) < len(storages[key]):
            raise FileError(where, "a whole file of torch.save", f"one that ends within storage {key}")
    if len(stored) < len(storages):
        raise FileError(where, "a whole file of torch.save", "one without some of its storages")
    file.seek(begin)
    return _Reader(where, place, lambda key, elements, itemsize: storages[key], whole).run(file)


class _Reader:
    # The tensors of a file: `read` finds the bytes of a storage once, `place` puts them on a device.

    def __init__(self, where: str, place: Place, read: _Read, whole: bool = False):
        self._where, self._place, self._read, self._whole = where, place, read, whole
        self._storages: dict[tuple[str, str], Tensor] = {}
        self._arrays: dict[str, Array] = {}

    def run(self, file: BinaryIO) -> Any:
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

    def _storage(self, identity: tuple[Any, ...]) -> Tensor:
        """A storage as a tensor of one axis."""
        kind, of, key, saved, elements, *part = identity
        if kind != "storage":
            raise Machine(_find, self._storage, self._where).refuse(of.name)
        name = of.name.rpartition(".")[2].removesuffix("Storage")
        if name not in STORAGES:
            raise DTypeError(self._where, f"tensors of {', '.join(NAMES)}", of.name)
        if (key, name) not in self._storages:
            dtype = NAMES[STORAGES[name]]
            if key not in self._arrays:
                self._arrays[key] = self._place(self._read(key, elements, dtype.itemsize), saved)
            self._storages[key, name] = Tensor(self._arrays[key].view(dtype))
        whole = self._storages[key, name]
        if part and part[0] is not None:  # a view of a storage, before PyTorch 0.4
            return _tensor(whole, part[0][1], (part[0][2],), (1,))
        return whole


def _find(name: str) -> Any:
    if name in _BUILD:
        return Global(name, _BUILD[name])
    if name.startswith("torch."):
        return Global(name, None) if name.endswith("Storage") else NAMES.get(name.removeprefix("torch."))
    return None


def _tensor(storage: Tensor, offset: int, size: Any, stride: Any, requires_grad: bool = False, *_: Any) -> Tensor:
    out = Tensor(_view(storage.array, offset, tuple(size), tuple(stride)), requires_grad)
    out.version = storage.version
    return out


def _view(flat: Array, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Array:
    if isinstance(flat, np.ndarray):
        steps = [step * flat.itemsize for step in stride]
        return np.ndarray(size, flat.dtype, flat.view(np.uint8), offset * flat.itemsize, steps)  # checks every bound
    if stride == tuple(math.prod(size[axis + 1 :]) for axis in range(len(size))):
        return flat[offset : offset + math.prod(size)].reshape(size)
    here = backends.backend_of(flat)
    return here.asarray(np.ascontiguousarray(_view(here.to_numpy(flat), offset, size, stride)))


def _tensor_of_dtype(storage: Tensor, offset: int, size: Any, stride: Any, tracked: bool, _: Any, dtype: Any) -> Tensor:
    return _tensor(Tensor(storage.array.view(dtype)), offset, size, stride, tracked)


def _encoded(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"text in {encoding}")
    return text.encode("latin1")


def _numpy_dtype(name: str, *_: Any) -> np.dtype[Any]:
    found = np.dtype(name) if len(name) < 4 else np.dtype(object)
    if found.kind not in "biufc":
        raise TypeError(f"a NumPy array of {name}")
    return found


def _numpy_array(*_: Any) -> HostArray:
    return np.empty(0, np.uint8)


_BUILD: dict[str, Callable[..., Any] | None] = {
    "collections.OrderedDict": lambda pairs=(): OrderedDict([(keys([key])[0], value) for key, value in pairs]),
    "collections.Counter": lambda counts: Counter(dict(counts)),
    "argparse.Namespace": lambda: Namespace(),
    "torch.Size": Shape,
    "torch.device": Device,
    "torch.Tensor": None,
    "torch.nn.parameter.Parameter": None,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_dtype,
    "torch._utils._rebuild_parameter": lambda data, requires_grad, hooks: Parameter(data, requires_grad),
    "torch._tensor._rebuild_from_type_v2": lambda function, kind, arguments, state: function.build(*arguments),
    "_codecs.encode": _encoded,
    "numpy.dtype": _numpy_dtype,
    "numpy.ndarray": None,
}
for _module in ("builtins", "__builtin__"):
    _BUILD |= {
        f"{_module}.set": lambda values=(): set(keys(values)),
        f"{_module}.frozenset": lambda values=(): frozenset(keys(values)),
        f"{_module}.complex": complex,
    }
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _BUILD |= {
        f"{_module}.scalar": lambda dtype, data: np.frombuffer(data, dtype)[0],
        f"{_module}._reconstruct": _numpy_array,
    }
for _module in ("pathlib", "pathlib._local"):
    _BUILD |= {f"{_module}.{_kind}": lambda *parts: Path(*parts) for _kind in ("PosixPath", "WindowsPath")}
