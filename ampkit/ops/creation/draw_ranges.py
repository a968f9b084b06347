"""The numbers of a dtype within a range, and draws that are rounded to them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import DType, float16, float64
from ampkit.base.errors import ArgumentError, DTypeError

Generator = np.random.Generator

_CUT_BITS = {dtypes.bfloat16: 16, float16: 13}  # of a float32 number, which the format has not


def draw_dtype(dtype: DType) -> Any:
    # NumPy's generator draws float32 or float64; float64 only on request.
    return np.float64 if dtype == float64 else np.float32


def check_float(where: str, dtype: DType) -> None:
    if not dtypes.is_float(dtype):
        raise DTypeError(where, "a floating-point dtype", dtypes.name_of(dtype))


def check_bounds(where: str, dtype: DType, a: float, b: float) -> None:
    """Raise DTypeError unless `dtype` is a float, ArgumentError unless a <= b and it represents them approximately."""
    check_float(where, dtype)
    most = dtypes.finfo(dtype).max
    if not -most <= a <= b <= most:
        raise ArgumentError(where, f"a <= b, both from {-most:g} to {most:g}", f"a={a}, b={b}")


@lru_cache(64)
def numbers_from(dtype: DType, low: float, high: float, closed: bool = False) -> tuple[float, float]:
    """The least and the largest number of `dtype` in [low, high), or in [low, high] if `closed`.

    Without such a number, the one that `low` is rounded to, twice. A bound counts as it is and as `dtype` rounds it, so
    that draws are within it however they are compared with it.
    """
    with np.errstate(over="ignore"):
        first, end = np.asarray(low).astype(dtype), np.asarray(high).astype(dtype)
    least = first if float(first) >= low else np.nextafter(first, dtype.type(math.inf))
    last = end if closed and float(end) <= high else np.nextafter(end, dtype.type(-math.inf))
    return (float(least), float(last)) if float(least) <= float(last) else (float(first), float(first))


def rounded_within(values: Any, dtype: DType, low: float, high: float, closed: bool = False) -> Any:
    """`values`, which are overwritten, rounded to `dtype`; those that would leave the range become its ends there."""
    least, last = numbers_from(dtype, low, high, closed)
    kind = values.dtype.type
    return np.clip(values, kind(least), kind(last), out=values).astype(dtype, copy=False)


def uniform(g: Generator, shape: Any, dtype: DType, a: float = 0.0, b: float = 1.0) -> Any:
    """Draws from [a, b), of float32's or float64's resolution; 16-bit ones are rounded down."""
    drawn = np.asarray(g.random(shape, draw_dtype(dtype)))
    if (a, b) == (0, 1):
        return _rounded_down(drawn, dtype, False).astype(dtype, copy=False)
    if b - a <= dtypes.finfo(drawn.dtype).max:
        drawn = np.asarray(a + (b - a) * drawn)
    else:  # the range itself overflows
        drawn = np.asarray((a / 2 + (b / 2 - a / 2) * drawn) * 2)
    return rounded_within(_rounded_down(drawn, dtype, a < 0), dtype, a, b)


def _rounded_down(values: Any, dtype: DType, signed: bool) -> Any:
    # float32 `values` to the precision of a 16-bit `dtype`, in place; subnormal numbers of float16 keep more bits.
    if dtype in _CUT_BITS:
        cut = _CUT_BITS[dtype]
        bits = values.view(np.int32)
        if signed:
            bits += bits >> 31 & (1 << cut) - 1  # away from 0 where negative
        bits &= -1 << cut
    return values


def finite(values: Any, dtype: DType, positive: bool = False) -> Any:
    """`values`, some of which may be infinite, rounded to finite numbers of `dtype`; `positive`: to those above 0."""
    values, limits = np.asarray(values), dtypes.finfo(dtype)
    least = (2.0**-24 if dtype == float16 else limits.tiny) if positive else limits.min
    kind = values.dtype.type
    return np.clip(values, kind(least), kind(limits.max)).astype(dtype)


def integers(where: str, g: Generator, shape: Any, dtype: DType, low: int, high: int) -> Any:
    """Integers from [low, high) that `dtype` represents, to which others are rounded.

    Raises ArgumentError where a floating-point dtype represents none, or an integer dtype not all.
    """
    if dtypes.is_float(dtype):
        first, last = numbers_from(dtype, low, high - 1, True)
        if not (low <= first <= last < high and math.isfinite(last)):
            raise ArgumentError(where, f"a range with integers of {dtype.name}", f"{low} to {high - 1}")
        return rounded_within(g.integers(low, high, shape).astype(float64), dtype, first, last, True)
    least, most = (0, 1) if dtype == dtypes.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not least <= low < high <= most + 1:
        raise ArgumentError(where, f"a range within that of {dtype.name}, {least} to {most}", f"{low} to {high - 1}")
    return g.integers(low, high, shape)
