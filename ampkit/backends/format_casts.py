"""Casts to and from formats below 16 bits, and copies between their arrays, for the backend of any device.

A backend brings `encode` and `decode`, as in base/formats.py, of arrays of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtypes import FLOATS, NARROW, Array, DType, float32, float64, name_of, uint8
from ..base.errors import DTypeError
from ..base.formats import FORMATS, encode_reference, is_packed
from ..base.memory_format import inverse, preserve_format, stored_order


def cast(backend: Any, array: Array, dtype: DType) -> Array:
    """A copy of `array` in `dtype`, one of the two below 16 bits, in the same order of axes in memory.

    Rounds to nearest, ties to even; what is too large becomes what PyTorch's cast makes of it. Raises DTypeError for a
    format that packs two values in a byte: the shape would change.
    """
    if array.dtype == dtype:
        return copied(array)
    if is_packed(array.dtype) or is_packed(dtype):
        cure = f"use ampkit.ops.cast_to(x, ampkit.{name_of(dtype)}), whose last axis is another"
        raise DTypeError("cast", "dtypes of one value per element", _words(array.dtype, dtype), cure)
    order = stored_order(array, preserve_format)
    rows = array.transpose(order)
    made = _decoded(backend, rows, dtype) if array.dtype in NARROW else _encoded(backend, rows, dtype)
    return made.transpose(inverse(order))


def _words(of: DType, to: DType) -> str:
    return f"{name_of(of)} to {name_of(to)}"


def _encoded(backend: Any, rows: Array, dtype: DType) -> Array:
    values = rows if rows.dtype in FLOATS else backend.cast(rows, float64)
    return backend.encode(values, dtype, FORMATS[dtype].saturates).view(dtype)


def _decoded(backend: Any, rows: Array, dtype: DType) -> Array:
    values = backend.decode(rows.view(uint8), rows.dtype, dtype if dtype in FLOATS else float32)
    return values if dtype in FLOATS else backend.cast(values, dtype)


def copy(backend: Any, target: Array, source: Array) -> None:
    """Write `source`, broadcast, into `target`, one of the two below 16 bits, cast as by `cast`."""
    cast_there = source if source.dtype == target.dtype else backend.cast(source, target.dtype)
    if target.dtype in NARROW:
        target, cast_there = target.view(uint8), cast_there.view(uint8)
    backend.copy(target, cast_there)


def copied(array: Array) -> Array:
    """A copy of an array of any dtype: CuPy has no kernel that copies structures."""
    return array.view(uint8).copy().view(array.dtype) if array.dtype in NARROW else array.copy()


def byte_of(number: float, dtype: DType) -> Any:
    """A number as a byte of a format: the same number in both halves of a packed one. -> uint8, on the host."""
    values = np.full(2 if is_packed(dtype) else 1, number, float64)
    return encode_reference(values, dtype, FORMATS[dtype].saturates)[0]
