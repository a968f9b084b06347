"""Values as bytes, without pickles: their structure as JSON, then the bytes of arrays.

What comes from another process can become None, bools, numbers, strings, bytes, dtypes, devices, arrays and tensors in
tuples, lists and dicts, and what `unpack` makes of the rest: nothing that is executed.
"""

from __future__ import annotations

import json
import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ... import backends
from ...base import dtypes, public_dtypes
from ...base.dtypes import Array
from ...base.errors import ArgumentError, DTypeError
from ...core.tensor import Tensor
from ...core.tensor_base import Shape

LENGTH = struct.Struct("<I")  # of the JSON
ALIGNED = 64  # bytes, to whose multiples arrays begin
NUMBERS = "biuf"  # kinds of NumPy's dtypes
SENT = "None, bools, numbers, str, bytes, dtypes, Tensors, arrays, RRefs and functions in tuples, lists and dicts"
Pack = Callable[[Any], "list[Any] | None"]
Unpack = Callable[[list[Any]], Any]


def encoded(where: str, value: Any, pack: Pack, head: bytes = b"") -> bytes:
    """`head` and the bytes of a value. pack: what stands in JSON for a value of another kind, or None.

    Raises DTypeError for a value that cannot be sent, ArgumentError for one that contains itself.
    """
    arrays: list[Array] = []
    try:
        text = json.dumps(_Structure(where, pack, arrays).of(value), separators=(",", ":")).encode()
    except RecursionError:
        raise ArgumentError(where, "values of finite depth", "a list or dict that contains itself") from None
    except ValueError as error:  # an integer beyond Python's limit for decimal digits
        raise ArgumentError(where, SENT, str(error)) from None
    parts: list[Any] = [head, LENGTH.pack(len(text)), text]
    place = sum(map(len, parts)) - len(head)
    for array in arrays:
        parts += [bytes(-place % ALIGNED), array]
        place += -place % ALIGNED + array.nbytes
    return b"".join(parts)


class _Structure:
    """What stands in JSON for values; their bytes are appended to `arrays`, as flat arrays of uint8."""

    def __init__(self, where: str, pack: Pack, arrays: list[Array]):
        self._where, self._pack, self._arrays = where, pack, arrays

    def of(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind in (list, tuple, Shape):
            return ["list" if kind is list else "tuple", *map(self.of, value)]
        if kind in (dict, OrderedDict):
            return ["dict", *([self.of(key), self.of(item)] for key, item in value.items())]
        if isinstance(value, Tensor):
            backend = backends.backend_of(value.array)
            return ["tensor", *self._array(backend.to_numpy(value.array)), backend.name]
        if kind in (bytes, bytearray):
            return ["bytes", *self._array(np.frombuffer(value, np.uint8))]
        if isinstance(value, (np.ndarray, np.generic)) and (value.dtype in dtypes.KNOWN or value.dtype.kind in NUMBERS):
            return ["array", *self._array(np.asarray(value))]
        if isinstance(value, (public_dtypes.dtype, np.dtype)):
            return ["dtype", dtypes.name_of(dtypes.parse(value))]
        found = self._pack(value)
        if found is None:
            raise DTypeError(self._where, SENT, f"a {kind.__name__}")
        return found

    def _array(self, array: Array) -> tuple[str, list[int]]:
        is_native = array.dtype in dtypes.KNOWN or array.dtype.isnative
        native = array if is_native else array.astype(array.dtype.newbyteorder("="))
        self._arrays.append(np.ascontiguousarray(native).reshape(-1).view(np.uint8))
        known = native.dtype in dtypes.KNOWN
        return dtypes.name_of(native.dtype) if known else native.dtype.str, list(native.shape)


def decoded(data: memoryview, unpack: Unpack) -> Any:
    """The value of bytes that `encoded` made; arrays are views of `data`.

    unpack: the value of what `pack` made. Raises ValueError for other bytes.
    """
    (length,) = LENGTH.unpack(data[: LENGTH.size])
    begin = LENGTH.size + length
    return _Values(data, begin, unpack).of(json.loads(bytes(data[LENGTH.size : begin])))


class _Values:
    """The values of what stands in JSON; arrays follow each other in `data`, from `place`."""

    def __init__(self, data: memoryview, place: int, unpack: Unpack):
        self._data, self._place, self._unpack = data, place, unpack

    def of(self, found: Any) -> Any:
        if not isinstance(found, list):
            return found
        kind, *rest = found
        if kind in ("list", "tuple"):
            return list(self._each(rest)) if kind == "list" else tuple(self._each(rest))
        if kind == "dict":
            return {self.of(key): self.of(item) for key, item in rest}
        if kind in ("tensor", "array", "bytes"):
            array = self._array(*rest[:2])
            return {"tensor": lambda: _tensor(array, rest[2]), "array": lambda: array, "bytes": array.tobytes}[kind]()
        return public_dtypes.DTYPES[dtypes.parse(rest[0])] if kind == "dtype" else self._unpack(found)

    def _each(self, values: list[Any]) -> Iterator[Any]:
        return map(self.of, values)

    def _array(self, name: str, shape: list[int]) -> Array:
        dtype = dtypes.NAMED[name] if name in dtypes.NAMED else np.dtype(name)
        if (name not in dtypes.NAMED and dtype.kind not in NUMBERS) or any(size < 0 for size in shape):
            raise ValueError(f"an array of {name} {shape}")
        self._place += -self._place % ALIGNED
        count = math.prod(shape)
        array = np.frombuffer(self._data, dtype, count, self._place) if count else np.empty(0, dtype)
        array = array.reshape(shape)
        self._place += array.nbytes
        return array


def _tensor(array: Array, kind: str) -> Tensor:
    """A tensor on the CPU, or on this thread's GPU if it was on one where it was sent."""
    return Tensor(array) if kind == "cpu" else Tensor(array).to(kind)
