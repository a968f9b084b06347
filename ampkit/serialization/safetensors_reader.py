"""Read safetensors files (huggingface/safetensors, format 0.4): the header is checked, then each tensor is read.

A file is 8 bytes with the length of the header, the header in JSON, and the bytes of the tensors, one after another.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Container, Sequence
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from ..backends.bool_bytes import as_bools
from ..base.dtypes import (
    float4_e2m1fn_x2,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
)
from ..base.errors import FileError
from ..base.files import foreign, reason
from ..core.tensor import Tensor
from .foreign_tensor import DTYPES, ForeignTensor

KEY = "ampkit"  # the entry of __metadata__ that holds the description
_MOST = 100_000_000  # bytes of a header, as in the reference implementation
_FORMATS: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "BOOL": np.bool_,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "F8_E4M3": float8_e4m3fn,
    "F8_E5M2": float8_e5m2, "F8_E8M0": float8_e8m0fnu, "F8_E4M3FNUZ": float8_e4m3fnuz,
    "F8_E5M2FNUZ": float8_e5m2fnuz, "F4": float4_e2m1fn_x2,
}  # fmt: skip
NAMES = {np.dtype(dtype): name for name, dtype in _FORMATS.items()}
_FOREIGN = {"C64": "complex64", "U16": "uint16", "U32": "uint32", "U64": "uint64"}
_AXES = 64  # of an array of NumPy
Place = Callable[[Any], Any]


class _Entry(NamedTuple):
    # A tensor of the header: its bytes lie from begin to end after the header.
    name: str
    format: str
    shape: tuple[int, ...]
    begin: int
    end: int


def decode(data: bytes, f: str | os.PathLike[str], place: Place = np.asarray) -> Any:
    """The object that `encode` was given, or the tensors of another safetensors file; errors name the file `f`.

    place: puts an array of the host on the device where its tensor is to be.
    """
    return read(io.BytesIO(data), f, place)


def read(file: BinaryIO, f: str | os.PathLike[str], place: Place = np.asarray) -> Any:
    """As `decode`, of a file that is open at its begin."""
    where = f"load: {os.fspath(f)}"
    with _broken(where):
        entries, description, start = _header(file)
        tensors = {entry.name: _tensor(file, start, entry, place) for entry in entries}
    if description is None:
        return tensors
    try:
        return rebuild(json.loads(description), tensors)
    except (KeyError, ValueError, TypeError, IndexError, RecursionError) as error:
        got = f"a description that does not fit its tensors: {reason(error)}"
        raise FileError(where, "a whole safetensors file", got) from error


def read_some(file: BinaryIO, f: str | os.PathLike[str], names: Container[str]) -> dict[str, Any]:
    """The tensors of these names of a file that is open at its begin, on the host; the others are not read."""
    with _broken(f"load: {os.fspath(f)}"):
        entries, _, start = _header(file)
        return {entry.name: _tensor(file, start, entry, np.asarray) for entry in entries if entry.name in names}


def _broken(where: str) -> Any:
    cure = "ampkit.save writes such files, and PyTorch's .pt files are read too"
    return foreign(where, "a whole safetensors file", cure)


def _header(file: BinaryIO) -> tuple[list[_Entry], str | None, int]:
    """The tensors of a file, its description, and where the bytes of the tensors begin. Raises ValueError."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    start = 8 + length
    if size < 8 or start > size or length > _MOST:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = json.loads(file.read(length).decode(), object_pairs_hook=_once)
    if not isinstance(header, dict):
        raise ValueError("a header that is no object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata that are no strings")
    entries = [_entry(name, entry) for name, entry in header.items()]
    _check_order(entries, size - start)
    return entries, metadata.get(KEY), start


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name that stands twice in the header")
    return found


def _entry(name: str, entry: dict[str, Any]) -> _Entry:
    kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if type(kind) is not str or not all(type(n) is int and 0 <= n < 2**63 for n in (*shape, begin, end)):
        raise ValueError(f"a dtype, shape or offset of {name!r} that is none")
    dtype = _FORMATS.get(kind) or DTYPES.get(_FOREIGN.get(kind, ""))
    if kind == "F4":  # of two values in a byte; the shape counts values
        shape = _shape_of_pairs(name, shape)
    if dtype is not None and math.prod(shape) * np.dtype(dtype).itemsize != end - begin:
        raise ValueError(f"{end - begin} bytes for {name!r} of {kind} {shape}")
    if len(shape) > _AXES:
        raise ValueError(f"{len(shape)} axes of {name!r}, where {_AXES} are the most")
    return _Entry(name, kind, tuple(shape), begin, end)


def _shape_of_pairs(name: str, shape: Sequence[int]) -> list[int]:
    if not shape or shape[-1] % 2:
        raise ValueError(f"an odd number of values of 4 bits in the rows of {name!r} {shape}")
    return [*shape[:-1], shape[-1] // 2]


def _check_order(entries: list[_Entry], size: int) -> None:
    # Each byte belongs to one tensor, so that a file takes no more memory than it has bytes.
    at = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != at or entry.end < at:
            raise ValueError(f"bytes of {entry.name!r} from {entry.begin} to {entry.end}, where {at} is the next")
        at = entry.end
    if at != size:
        raise ValueError(f"{size} bytes after the header, which lists {at}")


def _tensor(file: BinaryIO, start: int, entry: _Entry, place: Place) -> Any:
    values = np.empty(entry.end - entry.begin, np.uint8)
    file.seek(start + entry.begin)
    if file.readinto(values.data) != len(values):  # type: ignore[attr-defined]  # of a BytesIO or a buffered file
        raise ValueError(f"an end within {entry.name!r}")
    if entry.format == "BOOL":
        as_bools(values)
    if entry.format in _FORMATS:
        return Tensor(place(values.view(_FORMATS[entry.format]).reshape(entry.shape)))
    name = _FOREIGN.get(entry.format)
    array = None if name is None else values.view(DTYPES[name]).reshape(entry.shape)
    return ForeignTensor(array, name or entry.format, entry.shape, entry.name)


# The JSON of a value: {"tensor": name}, {"dict": [[key, value], ...]}, {"list": [...]}, {"tuple": [...]}, or itself.


def rebuild(described: Any, tensors: dict[str, Any]) -> Any:
    """The value of a JSON that `safetensors_writer.describe` has made."""
    if not isinstance(described, dict):
        return described
    ((kind, content),) = described.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: rebuild(value, tensors) for key, value in content}
    entries = [rebuild(value, tensors) for value in content]
    return {"tuple": tuple, "list": list}[kind](entries)
