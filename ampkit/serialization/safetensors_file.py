"""Safetensors files (huggingface/safetensors, format 0.4), which PyTorch and others read.

A dict of tensors is stored under its keys. The structure of the object and its other values (nested dicts and lists,
numbers, strings) are stored as JSON in the header's `__metadata__`, so that `decode` rebuilds the object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from .. import backends
from ..base import dtypes
from ..base.errors import DTypeError, FileError
from ..base.files import foreign, panicked, reason
from ..core.tensor import Tensor

_KEY = "ampkit"  # the entry of __metadata__ that holds the description
_FORMATS = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "BOOL": np.bool_,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
}  # fmt: skip


def encode(obj: Any) -> bytes:
    """The bytes of a safetensors file with `obj`: dicts, lists and tuples of tensors, numbers, strings and None.

    Raises DTypeError for a value of another type.
    """
    tensors: dict[str, Tensor] = {}
    try:
        description = _describe(obj, "", tensors, {})
    except RecursionError:
        raise DTypeError("save", "values that are nested less deeply", "an object in hundreds of others") from None
    arrays = {
        name: np.asarray(backends.backend_of(t.array).to_numpy(t.array), order="C") for name, t in tensors.items()
    }
    try:
        return safetensors.numpy.save(arrays, {_KEY: json.dumps(description, separators=(",", ":"))})
    except BaseException as error:
        if panicked(error):  # Rust panics if Python cannot allocate the bytes
            raise MemoryError(f"writing {len(arrays)} tensors: {reason(error)}") from error
        raise


def decode(data: bytes, f: str | os.PathLike[str], place: Callable[[Any], Any] = np.asarray) -> Any:
    """The object that `encode` was given, or the tensors of another safetensors file; errors name the file `f`.

    place: puts an array of the host on the device where its tensor is to be.
    """
    with foreign(*_safetensors(f)):
        items, description = safetensors.deserialize(data), _metadata(data).get(_KEY)
    tensors = {name: _tensor(f, name, item, place) for name, item in items}
    if description is None:
        return tensors
    try:
        return _rebuild(json.loads(description), tensors)
    except (KeyError, ValueError, TypeError, IndexError, RecursionError) as error:
        raise FileError(
            *_safetensors(f)[:2], f"a description that does not fit its tensors: {reason(error)}"
        ) from error


# The JSON of a value: {"tensor": name}, {"dict": [[key, value], ...]}, {"list": [...]}, {"tuple": [...]}, or itself.


def _describe(value: Any, path: str, tensors: dict[str, Tensor], names: dict[int, str]) -> Any:
    if isinstance(value, Tensor):
        if id(value.array) not in names:
            names[id(value.array)] = _unused_name(path or "tensor", tensors)
            tensors[names[id(value.array)]] = value
        return {"tensor": names[id(value.array)]}
    if isinstance(value, Mapping):
        return {
            "dict": [
                [_key(k, path), _describe(v, f"{path}.{k}" if path else str(k), tensors, names)]
                for k, v in value.items()
            ]
        }
    if isinstance(value, (list, tuple)):
        entries = [_describe(v, f"{path}.{i}" if path else str(i), tensors, names) for i, v in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": entries}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    cure = "wrap arrays with ampkit.tensor(...)" if hasattr(value, "__array__") else None
    raise DTypeError(
        "save",
        "tensors, dicts, lists, numbers, strings and None",
        f"a {type(value).__name__} at {path or 'the top'!r}",
        cure,
    )


def _unused_name(name: str, taken: Mapping[str, Any]) -> str:
    return name if name not in taken and name != "__metadata__" else _unused_name(f"{name}_", taken)


def _key(key: Any, path: str) -> str | int:
    if type(key) not in (str, int):
        got = f"a {type(key).__name__} in {path or 'the top'!r}"
        raise DTypeError("save", "strings or integers as the keys of dicts", got)
    return key


def _rebuild(described: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(described, dict):
        return described
    ((kind, content),) = described.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _rebuild(value, tensors) for key, value in content}
    entries = [_rebuild(value, tensors) for value in content]
    return {"tuple": tuple, "list": list}[kind](entries)


# Reading


def _safetensors(f: Any) -> tuple[str, str, str]:
    cure = "ampkit.save writes such files, and PyTorch's .pt files are read too"
    return f"load: {os.fspath(f)}", "a whole safetensors file", cure


def _metadata(data: bytes) -> dict[str, str]:
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__") or {}


def _tensor(f: Any, name: str, item: dict[str, Any], place: Callable[[Any], Any]) -> Tensor:
    if item["dtype"] not in _FORMATS:
        got = f"{name!r} of {item['dtype']}: {os.fspath(f)}"
        raise DTypeError("load", f"tensors of {', '.join(dtypes.NAMES)}", got)
    with foreign(*_safetensors(f)):  # NumPy allows fewer and shorter axes than the format
        values = np.frombuffer(item["data"], _FORMATS[item["dtype"]]).reshape(item["shape"])
    return Tensor(place(values if values.flags.writeable else values.copy()))
