"""Arrays as the kernels read them: dtypes they know, values side by side, vectors of float32."""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.base.dtypes import DType, float32

from .nvrtc import STORED

Array = Any


def supports_dtypes(stored: DType, answered: DType) -> bool:
    """Whether kernels read the one dtype and answer in the other: the same, or float32."""
    return stored in STORED and answered in (stored, float32)


def contiguous(array: Array) -> Array:
    """`array`, or a copy of it, with its values side by side in the order of its axes."""
    return array if array.flags.c_contiguous else array.copy()


def to_float32(vector: Array | None) -> Array | None:
    """A weight, a bias or statistics as the kernels read them: float32, side by side; None stays."""
    if vector is None or vector.dtype == float32:
        return vector if vector is None else contiguous(vector)
    return contiguous(backends.backend_of(vector).cast(vector, float32))


def vector_width(cols: int, *arrays: Array | None) -> int:
    """How many values are accessed at once: 8, or 1 where rows or arrays do not lie on boundaries of 16 bytes."""
    return 1 if cols % 8 or any(a is not None and a.data.ptr % 16 for a in arrays) else 8
