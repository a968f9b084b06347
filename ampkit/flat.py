"""Flat memory: worked through a piece at a time, in place; values kept or dropped by a flag on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import backends
from .backends import Array
from .core import dtypes
from .core.dtypes import DType
from .core.primitive import Primitive

# Elements handled at a time: with moments and scratch 1.5 MB of float32, the size of a level-2 cache.
CHUNK = 65536


def chunks(size: int) -> Iterator[slice]:
    """Slices of CHUNK elements that cover `size`."""
    for start in range(0, size, CHUNK):
        yield slice(start, min(start + CHUNK, size))


def _narrow(master: Array, copy: Array) -> None:
    copy[...] = backends.of(master).cast(master, copy.dtype)


narrow = Primitive("narrow", "optim", _narrow)  # (flat master, flat 16-bit copy): round one into the other


_BITS: dict[int, DType] = {2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


def mask(go: Array | None, dtype: DType) -> Array | None:
    """The bits to keep where `go` is true, all of them, and where it is false, none: 0-d, as wide as `dtype`."""
    return None if go is None else np.negative(go.astype(_BITS[dtype.itemsize]))


def keep(values: Array, bits: Array | None, out: Array) -> Array:
    """`values` and, where `mask` says so, exact zeros, whatever they were: inf and nan too. Written to `out`."""
    if bits is None:
        return values
    np.bitwise_and(values.view(bits.dtype), bits, out=out.view(bits.dtype))
    return out


def chosen(go: Array | None, value: Any, otherwise: float, dtype: DType) -> Any:
    """`value`, a number or a 0-d array, where `go` is true, and `otherwise` where it is false: 0-d, in `dtype`."""
    if go is not None:
        value = np.where(go, value, otherwise)
    return value.astype(dtype) if hasattr(value, "astype") else value


def look(array: Array) -> Any:
    """The one value of an array, on the host; waits for the device."""
    return array.item() if isinstance(array, np.generic) else backends.of(array).peek(array)
