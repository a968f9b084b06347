"""Whether the values of arrays are finite, by passes of fast loops; reads the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import backends
from ..base.array_kinds import on_device
from ..base.dtypes import FLOATS, bfloat16, float16

# The bits at and above which a 16-bit number is not finite: of positive ones as int16, of negative ones as uint16.
_LIMITS = {float16: (0x7C00, 0xFC00), bfloat16: (0x7F80, 0xFF80)}


def is_finite(array: Any) -> bool:
    """Whether every value of an array is finite; true for integers and booleans."""
    array = on_device(array)
    if getattr(array, "dtype", None) not in FLOATS or not array.size:
        return True
    with backends.device_guard(array):
        if 0 in array.strides:  # of a broadcast array, which may stand for more elements than can be read
            array = array[tuple([slice(None if step else 1) for step in array.strides])]
        if array.dtype in _LIMITS:  # integers are compared many times faster than 16-bit numbers
            positive, negative = _LIMITS[array.dtype]
            array = array.reshape(1) if array.ndim == 0 else array
            return bool(array.view(np.int16).max() < positive) and bool(array.view(np.uint16).max() < negative)
        # Infinity and NaN stay in a sum; that of finite values may overflow, which the second pass tells.
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def arrays_in(value: Any) -> Iterator[Any]:
    """The arrays of floating-point numbers in an array, or in a tuple or list of arrays and None."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from arrays_in(item)
    elif getattr(value, "dtype", None) in FLOATS:
        yield value


def all_finite(value: Any) -> bool:
    """Whether every value of the arrays in `value` is finite."""
    return all(map(is_finite, arrays_in(value)))


def is_minus_infinity(array: Any) -> bool:
    """Whether all that is not finite in an array is -inf."""
    array = on_device(array)
    with backends.device_guard(array):
        return bool((np.isfinite(array) | (array == -np.inf)).all())


def has_nan(array: Any) -> bool:
    """Whether a value of an array is NaN."""
    with backends.device_guard(array):
        return bool((array != array).any())


def share(array: Any, kind: str) -> float:
    """The share of values for which NumPy's function `kind` is true: "isinf" or "isnan"."""
    with backends.device_guard(array):
        return float(getattr(np, kind)(array).mean(dtype=np.float64)) if array.size else 0.0


def largest(value: Any) -> float | None:
    """The largest finite magnitude in the arrays in `value`; None if there is none."""
    found = None
    for array in arrays_in(value):
        with backends.device_guard(array):
            size = np.abs(backends.backend_of(array).cast(array, np.dtype(np.float64)))
            if size.size and bool(np.isfinite(size).any()):
                found = max(found or 0.0, float(np.where(np.isfinite(size), size, -1).max()))
    return found
