"""Arrays as the kernels read them: dtypes they know, values side by side, vectors of float32."""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.base.dtypes import DType, float32

from .nvrtc import STORED

Array = Any


def pairs(stored: DType, answered: DType) -> bool:
    """Whether kernels read the one dtype and answer in the other: the same, or float32."""
    return stored in STORED and answered in (stored, float32)


def dense(array: Array) -> Array:
    """`array`, or a copy of it, with its values side by side in the order of its axes."""
    return array if array.flags.c_contiguous else array.copy()


def wide(vector: Array | None) -> Array | None:
    """A weight, a bias or statistics as the kernels read them: float32, side by side; None stays."""
    if vector is None or vector.dtype == float32:
        return vector if vector is None else dense(vector)
    return dense(backends.backend_of(vector).cast(vector, float32))


def vectors(cols: int, *arrays: Array | None) -> int:
    """How many values are accessed at once: 8, or 1 where rows or arrays do not lie on boundaries of 16 bytes."""
    return 1 if cols % 8 or any(a is not None and a.data.ptr % 16 for a in arrays) else 8
