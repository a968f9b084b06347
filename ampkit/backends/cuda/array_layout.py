"""What kernels require of arrays: supported dtypes, contiguous memory, float32 vectors, alignment."""

from __future__ import annotations

from collections.abc import Sequence

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array, DType, float32, int32, int64

from .nvrtc import MAX_ELEMENTS, STORED


def supports_dtypes(stored: DType, answered: DType) -> bool:
    """Whether kernels read `stored` and write `answered`: the same dtype, or float32."""
    return stored in STORED and answered in (stored, float32)


def supports_array(array: Array) -> bool:
    """Whether kernels read `array`: its dtype is in STORED, and it is neither empty nor too large."""
    return array.dtype in STORED and 0 < array.size <= MAX_ELEMENTS


def supports_rows(array: Array, cols: int) -> bool:
    """Whether kernels that have a thread or more per row of `cols` values read `array`: offsets of rows are 64 bits."""
    rows = array.size // cols if cols else 0
    return array.dtype in STORED and 0 < rows <= MAX_ELEMENTS and cols <= MAX_ELEMENTS


def channels_last(like: Array, shape: Sequence[int], dtype: DType) -> Array:
    """Allocate [N, C, H, W] or [N, C, D, H, W] on the device of `like`, stored channels-last."""
    n, c, *size = shape
    return backends.backend_of(like).empty((n, *size, c), dtype).transpose(0, len(size) + 1, *range(1, len(size) + 1))


def contiguous(array: Array) -> Array:
    """`array` itself if it is C-contiguous, else a contiguous copy."""
    if array.flags.c_contiguous:
        return array
    if queue.waiting:
        queue.flush((array,))
    return array.copy()


def cast(array: Array, dtype: DType) -> Array:
    """`array` itself if it has this dtype, else a rounded copy."""
    if array.dtype == dtype:
        return array
    if queue.waiting:
        queue.flush((array,))
    return backends.backend_of(array).cast(array, dtype)


def to_float32(vector: Array | None) -> Array | None:
    """A weight, a bias or statistics as contiguous float32; None stays None."""
    return None if vector is None else contiguous(cast(vector, float32))


def to_int64(indices: Array) -> Array:
    """Labels or lengths as contiguous int64."""
    return contiguous(cast(indices, int64))


def to_int32_or_int64(index: Array) -> Array:
    """`index` itself if it has a dtype that kernels read, else as int64."""
    return index if index.dtype in (int32, int64) else index.astype(int64)


def vector_width(cols: int, *arrays: Array | None) -> int:
    """Values per access: 8, or 1 where rows or arrays are not 16-byte aligned."""
    return 1 if cols % 8 or any(a is not None and a.data.ptr % 16 for a in arrays) else 8
