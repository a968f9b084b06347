"""The values beside tensors that pickles of `torch.save` hold, by the name of what makes them: see unpickle.

Each function checks the types of its arguments, and copies what it keeps of them.
"""

from __future__ import annotations

import math
import re
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..backends import Device
from ..core.tensor_base import Shape
from .unpickle import Global, RefusedError, Unbuilt, keys

_NUMBERS = re.compile("[<=|]?(b1|[iu][1248]|f[248]|c8|c16)")  # NumPy's names of dtypes that are numbers
_DEVICE = re.compile(r"[a-z]{2,20}(:\d{1,9})?")
_FACTORIES: dict[str, Callable[[], Any]] = {
    f"{module}.{kind.__name__}": kind
    for module in ("builtins", "__builtin__")
    for kind in (int, float, bool, complex, str, bytes, list, tuple, dict, set, frozenset)
}
_FACTORIES |= {"__builtin__.long": int, "__builtin__.unicode": str}  # as protocol 2, PyTorch's, names them
_FACTORIES |= {f"collections.{kind.__name__}": kind for kind in (OrderedDict, Counter, deque)}


def _need(kind: type | tuple[type, ...], *values: Any) -> None:
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"a {type(value).__name__} as an argument")


def _ordered(pairs: Any = ()) -> OrderedDict[Any, Any]:
    _need((list, tuple), pairs)
    _need((list, tuple), *pairs)
    return OrderedDict([(keys([key])[0], value) for key, value in pairs])


def _of(make: Callable[..., Any], *kinds: type) -> Callable[..., Any]:
    """`make` of any number of arguments of these kinds."""

    def build(*values: Any) -> Any:
        _need(kinds, *values)
        return make(*values)

    return build


def _counter(counts: Any = None) -> Counter[Any]:
    found = {} if counts is None else counts
    _need(dict, found)
    return Counter(found)


def _default_dict(factory: Any = None, items: Any = None) -> defaultdict[Any, Any]:
    if factory is not None and not (isinstance(factory, Global) and factory.name in _FACTORIES):
        raise RefusedError(f"a defaultdict of {getattr(factory, 'name', type(factory).__name__)}")
    _need(dict, {} if items is None else items)
    if any(isinstance(value, (deque, defaultdict)) for value in (items or {}).values()):
        raise RefusedError("a defaultdict within another")
    return defaultdict(None if factory is None else _FACTORIES[factory.name], items or {})


def _deque(items: Any = (), longest: Any = None) -> deque[Any]:
    _need((list, tuple), items)
    _need((int, type(None)), longest)
    if any(isinstance(value, (deque, defaultdict)) for value in items):
        raise RefusedError("a deque within another")
    return deque(items, longest)


def _set(values: Any = ()) -> set[Any]:
    _need((list, tuple, set, frozenset), values)
    return set(keys(values))


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    _need(str, text, encoding)
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"text in {encoding}")
    return str(text).encode("latin1")


def _bytes(*content: Any) -> bytes:
    if len(content) == 1:
        _need((bytes, bytearray), *content)
        return bytes(content[0])
    return _encoded(*content) if content else b""


def _size(values: Any) -> Shape:
    _need((list, tuple), values)
    _need(int, *values)
    return Shape(values)


def _device(kind: Any, index: Any = None) -> Device:
    _need((str, int), kind)  # the text of another value may be exponentially long
    _need((int, type(None)), index)
    found = Device(kind, index)
    if not _DEVICE.fullmatch(found):
        raise ValueError(f"a device {found!r}")
    return found


# NumPy


def _numpy_dtype(name: Any, *_: Any) -> np.dtype[Any]:
    _need(str, name)
    if not _NUMBERS.fullmatch(name):
        raise RefusedError(f"an array of NumPy of {name}")
    return np.dtype(name)


def values_of(data: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray[Any, Any]:
    """An array with memory of its own, of bytes, which it needs exactly; a bool is True for each byte but 0."""
    _need(np.dtype, dtype)
    _need(tuple, shape)
    _need(int, *shape)
    raw = _encoded(data) if isinstance(data, str) else data  # str: as Python 2 wrote it
    _need((bytes, bytearray), raw)
    if dtype.kind not in "biufc" or any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"{len(raw)} bytes of an array of {dtype.name}")
    flat = np.frombuffer(bytes(raw), np.uint8).copy()
    flat = flat != 0 if dtype == np.bool_ else flat.view(dtype)
    return flat.reshape(shape, order=order)


def _of_state(state: Any) -> np.ndarray[Any, Any]:
    *_, shape, dtype, by_columns, data = state
    if isinstance(data, list):
        raise RefusedError("an array of objects of NumPy")
    return values_of(data, dtype, shape, "F" if by_columns else "C")


def _of_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    return values_of(data, dtype, shape, "F" if order == "F" else "C")


BUILD: dict[str, Callable[..., Any] | None] = {
    "collections.OrderedDict": _ordered,
    "collections.Counter": _counter,
    "collections.defaultdict": _default_dict,
    "collections.deque": _deque,
    "argparse.Namespace": lambda: Namespace(),
    "torch.Size": _size,
    "torch.device": _device,
    "_codecs.encode": _encoded,
    "numpy.dtype": _numpy_dtype,
    "numpy.ndarray": None,
}
for _module in ("builtins", "__builtin__"):
    BUILD |= {f"{_module}.{_name}": None for _name in ("int", "float", "bool", "str", "list", "tuple", "dict")}
    BUILD |= {
        f"{_module}.set": _set,
        f"{_module}.frozenset": lambda values=(): frozenset(_set(values)),
        f"{_module}.complex": _of(complex, int, float),
        f"{_module}.slice": _of(slice, int, float, str, type(None)),
        f"{_module}.range": _of(range, int),
        f"{_module}.bytes": _bytes,
        f"{_module}.bytearray": lambda *content: bytearray(_bytes(*content)),
    }
BUILD |= {"__builtin__.xrange": _of(range, int), "__builtin__.long": None, "__builtin__.unicode": None}
for _module in ("numpy.core", "numpy._core"):
    BUILD |= {
        f"{_module}.multiarray.scalar": lambda dtype, data: values_of(data, dtype, ())[()],
        f"{_module}.multiarray._reconstruct": lambda *_: Unbuilt(_of_state),
        f"{_module}.numeric._frombuffer": _of_buffer,
    }
for _module in ("pathlib", "pathlib._local"):
    BUILD |= {f"{_module}.{_kind}": _of(Path, str) for _kind in ("Path", "PosixPath", "WindowsPath", "PurePosixPath")}
    BUILD |= {f"{_module}.PureWindowsPath": _of(Path, str)}
