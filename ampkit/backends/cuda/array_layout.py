"""What kernels require of arrays: supported dtypes, contiguous memory, float32 vectors, alignment."""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.base.dtypes import DType, float32

from .nvrtc import STORED

Array = Any


def supports_dtypes(stored: DType, answered: DType) -> bool:
    """Whether kernels read `stored` and write `answered`: the same dtype, or float32."""
    return stored in STORED and answered in (stored, float32)


def contiguous(array: Array) -> Array:
    """`array` itself if it is C-contiguous, else a contiguous copy."""
    return array if array.flags.c_contiguous else array.copy()


def to_float32(vector: Array | None) -> Array | None:
    """A weight, a bias or statistics as contiguous float32; None stays None."""
    if vector is None or vector.dtype == float32:
        return vector if vector is None else contiguous(vector)
    return contiguous(backends.backend_of(vector).cast(vector, float32))


def vector_width(cols: int, *arrays: Array | None) -> int:
    """Values per access: 8, or 1 where rows or arrays are not 16-byte aligned."""
    return 1 if cols % 8 or any(a is not None and a.data.ptr % 16 for a in arrays) else 8
