"""Flat memory: worked through a piece at a time, in place; values kept or dropped by a flag on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.backends import Array
from ampkit.base import dtypes
from ampkit.base.dtypes import DType
from ampkit.core import random
from ampkit.core.primitive import Primitive

# Elements handled at a time: with moments and scratch 1.5 MB of float32, the size of a level-2 cache.
CHUNK = 65536


def chunks(size: int) -> Iterator[slice]:
    """Slices of CHUNK elements that cover `size`."""
    for start in range(0, size, CHUNK):
        yield slice(start, min(start + CHUNK, size))


def _narrow(master: Array, copy: Array) -> None:
    copy[...] = backends.backend_of(master).cast(master, copy.dtype)


narrow = Primitive("narrow", "optim.elementwise", _narrow)  # (flat master, flat 16-bit copy): round one into the other


class Draw(NamedTuple):
    """Random words of 16 bits, one for each element: those of draw `call` under `seed`, from `start` on.

    start: a multiple of 16.
    """

    seed: int
    call: int
    start: int = 0

    def beyond(self, count: int) -> Draw:
        """The same for what lies `count` elements further on."""
        return self._replace(start=self.start + count)


def _narrow_at_random(values: Array, home: Array, draw: Draw) -> None:
    there = backends.backend_of(values)
    words = there.asarray(random.words(draw.seed, draw.call, values.size, draw.start).astype(np.int32))
    drop, most = _DROPPED[home.dtype]
    bits = values.view(dtypes.int32)
    size = np.bitwise_and(bits, 0x7FFFFFFF)
    # Adding the word to the bits that will be cut off carries with the probability that they are of a whole.
    raised = np.bitwise_and(size + np.right_shift(words, 16 - drop), -1 << drop)
    if home.dtype == dtypes.float16:
        raised = np.where(size < _NORMAL, _fixed_point(size.view(dtypes.float32), words), raised)
    raised = np.where(size < _INFINITE, np.minimum(raised, most), size)
    rounded = np.bitwise_or(raised, np.bitwise_and(bits, -(2**31))).astype(dtypes.int32)
    home[...] = there.cast(rounded.view(dtypes.float32), home.dtype)


def _fixed_point(size: Array, words: Array) -> Array:
    # float16 below its normal numbers: multiples of 2^-24, up where the word is below the rest, in 2^-16 of a multiple.
    size = np.multiply(size, 2.0**24)
    whole = np.floor(size)
    up = np.floor((size - whole) * 65536) > words
    return ((whole + up.astype(dtypes.float32)) * 2.0**-24).astype(dtypes.float32).view(dtypes.int32)


# of a float32: how many bits are cut off, and the bits of the largest finite number
_DROPPED: dict[DType, tuple[int, int]] = {dtypes.bfloat16: (16, 0x7F7F0000), dtypes.float16: (13, 0x477FE000)}
_NORMAL, _INFINITE = 0x38800000, 0x7F800000  # the bits of 2^-14, float16's least normal number, and of infinity

# (flat float32 values, flat 16-bit home, draw): to one of the two nearest, the nearer the likelier; stays finite
narrow_at_random = Primitive("narrow_at_random", "optim.elementwise", _narrow_at_random)


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


def select_into(old: Array, new: Array, go: Array | None) -> None:
    """Write `new` over `old`, where `go`."""
    old[...] = new if go is None else np.where(go, new, old)


def look(array: Array) -> Any:
    """The one value of an array, on the host; waits for the device."""
    return array.item() if isinstance(array, np.generic) else backends.backend_of(array).item(array)
