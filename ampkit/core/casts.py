"""Casts of arrays that a backward may be tracing: what ops, the tape and kernels convert dtypes with."""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import DIFFERENTIABLE, DType, accumulator


def is_traced(array: Any) -> bool:
    """Whether `array` is a TracedArray, whose operations are recorded."""
    return hasattr(array, "tensor")


def cast(array: Any, dtype: DType) -> Any:
    """An array, traced or not, in `dtype`: itself if it is in it, else a rounded copy."""
    if array.dtype == dtype:
        return array
    if queue.waiting:
        queue.flush(None if is_traced(array) else (array,))
    return array.astype(dtype) if is_traced(array) else backends.backend_of(array).cast(array, dtype)


def cast_unread(array: Any, dtype: DType) -> Any:
    """`cast` for callers that read no elements of the result, which a compiled step may then compute later."""
    if queue.active and array.dtype != dtype and not is_traced(array):
        made = queue.held.cast(array, dtype)
        if made is not None:
            return made
    return cast(array, dtype)


def to_accumulator(array: Any) -> Any:
    """An array, traced or not, in its accumulator dtype."""
    return cast(array, accumulator(array.dtype))


def widen(value: Any, compute: DType | None) -> Any:
    """A floating-point array (traced or not, or a tuple of them) in `compute`; anything else, and None, unchanged."""
    if type(value) is tuple:
        return tuple([widen(v, compute) for v in value])
    if compute is None or getattr(value, "dtype", None) not in DIFFERENTIABLE:
        return value
    return cast(value, compute)
