"""Write safetensors files (huggingface/safetensors, format 0.4), which PyTorch and others read.

A dict of tensors is stored under its keys. The structure of the object and its other values (nested dicts and lists,
numbers, strings) are stored as JSON in the header's `__metadata__`, so that `decode` (safetensors_reader) rebuilds the
object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from .. import backends
from ..base.dtypes import NARROW, DType
from ..base.errors import DTypeError
from ..base.files import panicked, reason
from ..base.formats import values_shape
from ..core.tensor import Tensor
from .safetensors_reader import KEY, NAMES


def encode(obj: Any) -> bytes:
    """The bytes of a safetensors file with `obj`: dicts, lists and tuples of tensors, numbers, strings and None.

    Raises DTypeError for a value of another type.
    """
    tensors: dict[str, Tensor] = {}
    try:
        description = describe(obj, "", tensors, {})
    except RecursionError:
        raise DTypeError("save", "values that are nested less deeply", "an object in hundreds of others") from None
    arrays = {
        name: np.asarray(backends.backend_of(t.array).to_numpy(t.array), order="C") for name, t in tensors.items()
    }
    narrow = {name: values.dtype for name, values in arrays.items() if values.dtype in NARROW}
    arrays |= {name: arrays[name].view(np.uint8) for name in narrow}
    try:
        written = safetensors.numpy.save(arrays, {KEY: json.dumps(description, separators=(",", ":"))})
        return _with_formats(written, narrow) if narrow else written
    except BaseException as error:
        if panicked(error):  # Rust panics if Python cannot allocate the bytes
            raise MemoryError(f"writing {len(arrays)} tensors: {reason(error)}") from error
        raise


def _with_formats(file: bytes, narrow: Mapping[str, DType]) -> bytes:
    """A file whose header names the formats of bytes: not every release of safetensors takes them all."""
    start = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:start])
    for name, dtype in narrow.items():
        header[name]["dtype"] = NAMES[dtype]
        header[name]["shape"] = values_shape(header[name]["shape"], dtype)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + file[start:]


# The JSON of a value: {"tensor": name}, {"dict": [[key, value], ...]}, {"list": [...]}, {"tuple": [...]}, or itself.


def describe(value: Any, path: str, tensors: dict[str, Tensor], names: dict[int, str]) -> Any:
    """The JSON of a value at `path`; its tensors go into `tensors` by name, and `names` by the id of their arrays."""
    if isinstance(value, Tensor):
        if id(value.array) not in names:
            names[id(value.array)] = _unused_name(path or "tensor", tensors)
            tensors[names[id(value.array)]] = value
        return {"tensor": names[id(value.array)]}
    if isinstance(value, Mapping):
        paths = {k: f"{path}.{k}" if path else str(k) for k in value}
        return {"dict": [[_key(k, path), describe(v, paths[k], tensors, names)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        entries = [describe(v, f"{path}.{i}" if path else str(i), tensors, names) for i, v in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": entries}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    cure = "wrap arrays with ampkit.tensor(...)" if hasattr(value, "__array__") else None
    needs, got = (
        "tensors, dicts, lists, numbers, strings and None",
        f"a {type(value).__name__} at {path or 'the top'!r}",
    )
    raise DTypeError("save", needs, got, cure)


def _unused_name(name: str, taken: Mapping[str, Any]) -> str:
    return name if name not in taken and name != "__metadata__" else _unused_name(f"{name}_", taken)


def _key(key: Any, path: str) -> str | int:
    if type(key) not in (str, int):
        got = f"a {type(key).__name__} in {path or 'the top'!r}"
        raise DTypeError("save", "strings or integers as the keys of dicts", got)
    return key
