"""count_exponents: an array's values by binary exponent, with what makes the limits of narrow formats exact.

One pass over an array, of any floating-point dtype, adds to a row of counts on the device:

    counts[:256]        values by the biased exponent of their magnitude in float32; 0: zero, subnormal; 255: inf, NaN
    counts[256:270]     values whose magnitude has at least the bits LIMITS[i]
    counts[270]         the bits of the largest finite magnitude

`losses` reads from such a row how many values a format would lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..base.dtypes import Array, DType, bfloat16, float16, float32, float64, int32, int64
from ..core.dispatch import primitive
from ..core.fp_errors import ignore_fp_errors

EXPONENTS, BIAS = 256, 127
_INFINITY = 0x7F800000
Segments = Sequence[tuple[int, int]]


class Format(NamedTuple):
    """What of a magnitude decides how a format stores it, rounded to nearest, ties to even.

    overflow: the least that it does not hold: it becomes inf (NaN in E4M3FN). normal: the least that rounds to a normal
    number. kept: the least that does not round to zero. All are bits of float32.
    """

    overflow: int
    normal: int
    kept: int


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def _format(precision: int, smallest_exponent: int, overflow: int) -> Format:
    # precision: bits of the significand, the leading one included. Half a unit below the smallest normal rounds up to
    # it, being even; half of the smallest subnormal rounds down to zero.
    half_unit = 2.0 ** (smallest_exponent - precision)
    return Format(overflow, _bits(2.0**smallest_exponent - half_unit), _bits(half_unit) + 1)


# The least that overflows lies half a unit above the largest: 65504, 3.39e38, 448 (where the tie goes down), 57344.
FORMATS: dict[str, Format] = {
    "float16": _format(11, -14, _bits(65520)),
    "bfloat16": _format(8, -126, 0x7F7F8000),
    "float8_e4m3fn": _format(4, -6, _bits(464) + 1),
    "float8_e5m2": _format(3, -14, _bits(61440)),
}
# What is not zero, what is NaN, and the limits of the formats.
LIMITS = np.array([1, _INFINITY + 1, *(bits for known in FORMATS.values() for bits in known)], np.int32)
LARGEST = EXPONENTS + len(LIMITS)
SIZE = LARGEST + 1
_BORDERS = np.concatenate([np.arange(EXPONENTS, dtype=np.int64) << 23, LIMITS]).astype(np.int32)


def magnitude_bits(values: Array) -> Array:
    """The bits of float32 magnitudes as int32. float64 is rounded to odd, which keeps each value's side of a limit."""
    backend = backends.backend_of(values)
    if values.dtype != float64:
        return np.bitwise_and(backend.cast(values, float32).view(int32), 0x7FFFFFFF)
    wide = np.abs(values)
    near = backend.cast(wide, float32)
    widened = near.astype(float64)
    bits = (near.view(int32) - (widened > wide)).astype(int32)
    return np.bitwise_or(bits, (widened != wide) & (wide == wide))


@primitive("amp.exponents")
def count_exponents(values: Array, counts: Array) -> None:
    """Add to counts [SIZE] int64 (see the module) values of any shape, strides and floating-point dtype."""
    if values.size == 0:
        return
    backend = backends.backend_of(values)
    with ignore_fp_errors():
        bits = np.sort(magnitude_bits(values.reshape(-1)))
    below = np.searchsorted(bits, backend.constant(_BORDERS))
    at_least = np.subtract(bits.size, below).astype(int64)
    counts[: EXPONENTS - 1] += at_least[: EXPONENTS - 1] - at_least[1:EXPONENTS]
    counts[EXPONENTS - 1 : LARGEST] += at_least[EXPONENTS - 1 :]
    finite = np.max(np.where(bits < _INFINITY, bits, 0))
    counts[LARGEST:] = np.maximum(counts[LARGEST:], finite)


@primitive("amp.exponents")
def count_exponents_of_segments(values: Array, segments: Segments, counts: Array) -> None:
    """`count_exponents` of each segment, (start, stop) in values [n]; counts [segments, SIZE] int64."""
    for (start, stop), row in zip(segments, counts, strict=True):
        count_exponents(values[start:stop], row)


class Losses(NamedTuple):
    """How many of the values that are not zero, inf or NaN a format would store as inf (or NaN), subnormal, or zero."""

    overflow: int
    subnormal: int
    flushed: int


def losses(counts: np.ndarray[Any, Any], name: str) -> Losses:
    """What the format `name`, a key of FORMATS, would lose of the values in a row of counts, on the host."""
    nonzero, infinite = int(counts[EXPONENTS]), int(counts[EXPONENTS - 1])
    first = EXPONENTS + 2 + 3 * [*FORMATS].index(name)
    overflow, normal, kept = (int(count) for count in counts[first : first + 3])
    return Losses(overflow - infinite, kept - normal, nonzero - kept)


# updates that 16-bit weights would lose


@primitive("amp.exponents")
def count_lost_updates(before: Array, after: Array, counts: Array) -> None:
    """Add to counts [3] int64 how many weights an update changed, and how many it would not have changed in 16 bits.

    Flat weights before and after it, float32 or float64. A float16 and a bfloat16 weight would not have changed where
    round(round(weight) + update) == round(weight).
    """
    backend = backends.backend_of(before)
    with ignore_fp_errors():
        update = np.subtract(after, before)
        counts[0] += np.count_nonzero(update)
        for place, dtype in enumerate((float16, bfloat16), 1):
            counts[place] += _lost(backend, before, update, dtype)


def _lost(backend: Any, before: Array, update: Array, dtype: DType) -> Array:
    weight = backend.cast(before, dtype)
    moved = backend.cast(np.add(weight.astype(update.dtype), update), dtype)
    return np.count_nonzero((moved == weight) & (update != 0))


@primitive("amp.exponents")
def lost_updates_of_segments(before: Array, after: Array, segments: Segments, counts: Array) -> None:
    """`count_lost_updates` of each segment, (start, stop) in flat weights; counts [segments, 3] int64."""
    for (start, stop), row in zip(segments, counts, strict=True):
        count_lost_updates(before[start:stop], after[start:stop], row)
