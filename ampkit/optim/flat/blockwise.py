"""Moments in 8 bits: codes with one float32 scale per block of 256 elements.

A value is `values[code] * scale`, and the scale of a block follows from its largest magnitude. Two tables of values:
"int8" is the dynamic map of Dettmers et al. 2022, arXiv:2110.02861, section 1.3, as bitsandbytes and torchao have it;
"float8" is float8_e4m3fn, whose bits the codes are. A moment that is never negative, as a mean of squares, has a table
of its own, whose positive values never round to 0: an update divides by their root (Li et al. 2023, arXiv:2309.01507,
section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ampkit import backends
from ampkit.base.dtypes import Array, float32, int32, uint8
from ampkit.core import random
from ampkit.core.dispatch import primitive
from ampkit.core.fp_errors import ignore_fp_errors

from .memory import RandomBits

BLOCK = 256  # elements that share a scale, as in torchao; a divisor of CHUNK
NEAREST = 0x7FFF  # the word in place of a random one that rounds to nearest: up from a remainder of a half
# A table as kernels read it: `BlockCode` of kernels/shared/block_codes.h.
LAYOUT = np.dtype(
    [
        ("values", float32, 256), ("magnitudes", float32, 256), ("largest", float32), ("zero", int32),
        ("negative", int32), ("direction", int32), ("most_positive", int32), ("most_negative", int32), ("least", int32),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Code:
    """A table of 256 values.

    values [256] float32 by code, of which 0 has the code `zero`. magnitudes [256] float32, ascending from 0, and
    infinity behind the last. largest: what a block is scaled to. The k-th magnitude has the code zero + k, its negative
    negative + direction * k; most_positive and most_negative are the last of both. least: the k that positive values
    have at least.
    """

    values: Array
    magnitudes: Array
    largest: float
    zero: int
    negative: int
    direction: int
    most_positive: int
    most_negative: int
    least: int

    __hash__ = object.__hash__  # there is one of each, see `code_of`
    __eq__ = object.__eq__

    def beside(self, array: Array) -> Array:
        """The table in LAYOUT, as bytes on the device of `array`."""
        backend = backends.backend_of(array)
        key = self, backend, backend.device_of(array)
        if key not in _TABLES:
            record = np.zeros(1, LAYOUT)
            for name in LAYOUT.names or ():
                record[name] = getattr(self, name)
            _TABLES[key] = backend.asarray(record.view(uint8))
        return _TABLES[key]


_TABLES: dict[Any, Array] = {}  # by code, backend and device


@cache
def code_of(state_dtype: str, is_non_negative: bool) -> Code:
    """The table of "int8" or "float8"."""
    if state_dtype == "float8":
        values = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        magnitudes, most_negative = values[:127], 0 if is_non_negative else 126
        return Code(values, _padded(magnitudes), 448.0, 0, 128, 1, 126, most_negative, int(is_non_negative))
    magnitudes = _dynamic_magnitudes(7 if is_non_negative else 6)
    if is_non_negative:
        return Code(magnitudes, magnitudes, 1.0, 0, 0, 1, 255, 0, 1)
    values = np.concatenate([-magnitudes[127:0:-1], magnitudes])
    return Code(values, _padded(magnitudes), 1.0, 127, 127, -1, 128, 127, 0)


def _dynamic_magnitudes(bits: int) -> Array:
    # Decades from 1e-6 up: the midpoints of 2^(bits - 6) equal parts in the lowest and of twice as many in each next.
    found = [np.zeros(1)]
    for decade in range(7):
        edges = np.linspace(0.1, 1, 2 ** (bits - 6 + decade) + 1)
        found.append(10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2)
    return np.concatenate([*found, [1.0]]).astype(np.float32)


def _padded(magnitudes: Array) -> Array:
    return np.concatenate([magnitudes, np.full(256 - len(magnitudes), np.inf, np.float32)])


@dataclass(frozen=True)
class Blockwise:
    """A flat moment in 8 bits: codes [n] uint8 from the start of a block on, scales [ceil(n / BLOCK)] float32."""

    codes: Array
    scales: Array
    code: Code

    dtype = uint8

    def part(self, start: int, stop: int) -> Blockwise:
        """The elements from `start`, a multiple of BLOCK, to `stop`, as a view."""
        return Blockwise(self.codes[start:stop], self.scales[start // BLOCK : -(-stop // BLOCK)], self.code)

    def decoded(self) -> Array:
        """The values, [n] float32."""
        return decode(self.codes, self.scales, self.code)

    def encode(self, values: Array, random_bits: RandomBits | None = None) -> None:
        """Store `values` [n] float32, rounded stochastically, or to nearest without random bits."""
        encode(values, self.codes, self.scales, self.code, random_bits)

    def copy(self) -> Blockwise:
        """A copy in memory of its own."""
        return Blockwise(self.codes.copy(), self.scales.copy(), self.code)


@primitive("optim.elementwise")
def decode(codes: Array, scales: Array, code: Code) -> Array:
    """The float32 values, flat, of codes and scales."""
    values = backends.backend_of(codes).asarray(code.values)
    return values[codes.astype(np.int64)] * np.repeat(scales, BLOCK)[: codes.size]


@primitive("optim.elementwise")
@ignore_fp_errors()  # of 0 / 0 in a block of zeros
def encode(values: Array, codes: Array, scales: Array, code: Code, random_bits: RandomBits | None) -> None:
    """Write the codes and scales of flat float32 values; a block with NaN or infinity becomes NaN.

    random_bits: None rounds to nearest.
    """
    backend, sizes = backends.backend_of(values), np.abs(values)
    padded = backend.zeros((len(scales) * BLOCK,), float32)
    padded[: values.size] = sizes
    largest = np.max(padded.reshape(-1, BLOCK), axis=1)
    scales[...] = np.where(largest < np.inf, largest / np.float32(code.largest), np.float32(np.nan))
    scaled = sizes / np.repeat(scales, BLOCK)[: values.size]
    magnitudes, negative = backend.asarray(code.magnitudes), values < 0
    most = np.where(negative, code.most_negative, code.most_positive)
    place = np.searchsorted(magnitudes, np.where(scaled >= 0, scaled, np.float32(0)), side="right") - 1
    place = np.minimum(place, most)
    low, high = magnitudes[place], magnitudes[np.minimum(place + 1, 255)]
    part_of_step = (scaled - low) / (high - low) * np.float32(65536)
    place += (place < most) & (np.floor(part_of_step) > _words(backend, random_bits, values.size))
    place = np.where(values > 0, np.maximum(place, code.least), place)
    codes[...] = np.where(negative, code.negative + code.direction * place, code.zero + place).astype(uint8)


def _words(backend: Any, random_bits: RandomBits | None, count: int) -> Any:
    if random_bits is None:
        return NEAREST
    seed, call, start = random_bits
    return backend.asarray(random.random_bits(seed, call, count, start).astype(np.int32))
