"""Operations on flat memory: cache-sized chunks, rounding to 16 bits, and select by a flag that stays on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import Array, DType, bfloat16, float16, float32, int16, int32, int64
from ampkit.core import random
from ampkit.core.dispatch import primitive

# Elements of a chunk: with moments and scratch 1.5 MB of float32, the size of a level-2 cache.
CHUNK = 65536


def chunks(size: int) -> Iterator[slice]:
    """Slices of CHUNK elements, the last one shorter, that cover `size` elements."""
    for start in range(0, size, CHUNK):
        yield slice(start, min(start + CHUNK, size))


def read_scalar(array: Array) -> Any:
    """The value of an array of one element as a Python number; waits for the device."""
    return array.item() if isinstance(array, np.generic) else backends.backend_of(array).item(array)


# rounding


@primitive("optim.elementwise")
def narrow(values: Array, out: Array) -> None:
    """Round flat values to nearest even, into flat 16-bit memory."""
    out[...] = backends.backend_of(values).cast(values, out.dtype)


class RandomBits(NamedTuple):
    """A stream of 16 random bits per element: draw `call` under `seed`, from element `start`, a multiple of 16, on."""

    seed: int
    call: int
    start: int = 0

    def skip(self, count: int) -> RandomBits:
        """The stream from `count` elements further on."""
        return self._replace(start=self.start + count)

    def later(self, draws: int) -> RandomBits:
        """The stream of the draw so many later."""
        return self._replace(call=self.call + draws)


@primitive("optim.elementwise")
def round_stochastically(values: Array, out: Array, random_bits: RandomBits) -> None:
    """Round flat float32 values to one of the two neighbours with probability proportional to nearness.

    The expected value is the input; finite values stay finite. out: flat, 16-bit.
    """
    backend = backends.backend_of(values)
    seed, call, start = random_bits
    words = backend.asarray(random.random_bits(seed, call, values.size, start).astype(np.int32))
    dropped_bits, largest = _ROUNDING[out.dtype]
    bits = values.view(int32)
    magnitude = np.bitwise_and(bits, 0x7FFFFFFF)
    # A random word added to the dropped bits carries with the probability that they are, as a fraction of a unit.
    rounded = np.bitwise_and(magnitude + np.right_shift(words, 16 - dropped_bits), -1 << dropped_bits)
    if out.dtype == float16:
        subnormal = magnitude < _FLOAT16_NORMAL
        rounded = np.where(subnormal, _round_subnormal(magnitude.view(float32), words), rounded)
    rounded = np.where(magnitude < _INFINITY, np.minimum(rounded, largest), magnitude)
    signed = np.bitwise_or(rounded, np.bitwise_and(bits, -(2**31))).astype(int32)
    out[...] = backend.cast(signed.view(float32), out.dtype)


def _round_subnormal(magnitude: Array, words: Array) -> Array:
    # Subnormal float16 are multiples of 2^-24: round up where the word is below the remainder, in units of 2^-16.
    scaled = np.multiply(magnitude, 2.0**24)
    floor = np.floor(scaled)
    up = np.floor((scaled - floor) * 65536) > words
    return ((floor + up.astype(float32)) * 2.0**-24).astype(float32).view(int32)


# of a float32: how many bits of the mantissa are dropped, and the bit pattern of the largest finite result
_ROUNDING: dict[DType, tuple[int, int]] = {bfloat16: (16, 0x7F7F0000), float16: (13, 0x477FE000)}
# bit patterns of float32: 2^-14, the smallest normal float16, and infinity
_FLOAT16_NORMAL, _INFINITY = 0x38800000, 0x7F800000


# select: `flag` is a 0-d bool array on the device, or None for true; NaN and infinity are discarded, not multiplied

_INTEGERS: dict[int, DType] = {2: int16, 4: int32, 8: int64}


def flag_mask(flag: Array | None, dtype: DType) -> Array | None:
    """`flag` as a 0-d integer bit mask of dtype's width: all ones if true, else zero. None for None."""
    return None if flag is None else np.negative(flag.astype(_INTEGERS[dtype.itemsize]))


def mask_bits(values: Array, mask: Array | None, out: Array) -> Array:
    """`values` where `flag_mask` is all ones, else exact zeros even for NaN and infinity; written to `out`."""
    if mask is None:
        return values
    np.bitwise_and(values.view(mask.dtype), mask, out=out.view(mask.dtype))
    return out


def where_flag(flag: Array | None, value: Any, otherwise: float, dtype: DType) -> Any:
    """`value`, a number or 0-d array, if `flag` is true, else `otherwise`; an array comes back in `dtype`."""
    if flag is not None:
        value = np.where(flag, value, otherwise)
    return value.astype(dtype) if hasattr(value, "astype") else value


def select_into(out: Array, new: Array, flag: Array | None) -> None:
    """Overwrite `out` with `new` if `flag` is true; else leave it as it is."""
    out[...] = new if flag is None else np.where(flag, new, out)
