"""float32 to float16 and back, by the processor's own instructions where it has them (`f16c`).

Elsewhere by integer arithmetic, and back by a table, a block in the cache at a time: NumPy converts element by element
and takes the slow path of the processor for every value that float16 holds as a subnormal (below 6.1e-5, where
gradients live), many times slower there. Rounds to the nearest, ties to even, as IEEE 754.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ampkit.base.dtypes import float16, float32

from . import f16c
from .caching_allocator import empty
from .onednn.reorder import flat_view, unflatten

_BLOCK = 1 << 14  # 64 KiB of float32: a block and its scratch stay in the second-level cache
_SMALLEST_NORMAL = np.uint32(0x38800000)  # the bits of 2^-14
_OVERFLOW = np.uint32(0x47800000)  # the bits of 2^16, which rounds to infinity
_INFINITY = np.uint32(0x7F800000)
_SHIFT = np.uint32(13 << 23)  # 23 - 10 bits of mantissa, as an exponent
_BIAS = np.uint32(126 << 10)  # (127 - 15 + 13 + 1) in the exponent field of float16


def from_float32(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`array` float32 -> float16, the same shape and the nearest values; NaN stays NaN. Same memory layout."""
    source, flat = _dense(array)
    out = empty((flat.size,), float16)
    if not f16c.convert(flat, out):
        _narrow(flat, out)
    return unflatten(source, out)


def to_float32(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`array` float16 -> float32, the same shape and values. Same memory layout."""
    source, flat = _dense(array)
    wide = empty((flat.size,), float32)
    if not f16c.convert(flat, wide):
        _widen(flat, wide)
    return unflatten(source, wide)


def _narrow(flat: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
    bits, halves = flat.view(np.uint32), out.view(np.uint16)
    size = min(_BLOCK, bits.size)
    absolute, magic = np.empty(size, np.uint32), np.empty(size, np.uint32)
    for start in range(0, bits.size, _BLOCK):
        block = bits[start : start + _BLOCK]
        _round(block, halves[start : start + _BLOCK], absolute[: block.size], magic[: block.size])


def _widen(flat: np.ndarray[Any, Any], wide: np.ndarray[Any, Any]) -> None:
    table, bits = _values(), flat.view(np.uint16)
    place = np.empty(min(_BLOCK, bits.size), np.intp)
    for start in range(0, bits.size, _BLOCK):
        block = bits[start : start + _BLOCK]
        at = place[: block.size]
        np.copyto(at, block)
        np.take(table, at, out=wide[start : start + _BLOCK], mode="clip")  # "raise" would copy `out`


def _dense(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    # The array, copied if it is not dense, and its elements in memory order.
    flat = flat_view(array)
    if flat is None:
        array = np.ascontiguousarray(array)
        flat = array.reshape(-1)
    return array, flat


@cache
def _values() -> np.ndarray[Any, Any]:
    # Every float16 there is, in the order of its bits.
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@cache
def _filled(number: Any) -> np.ndarray[Any, Any]:
    # NumPy's minimum and maximum take four times as long with a number as with an array.
    return np.full(_BLOCK, number, np.uint32)


def _round(block: Any, out: Any, absolute: Any, magic: Any) -> None:
    np.bitwise_and(block, 0x7FFFFFFF, out=absolute)
    if absolute.max() > _INFINITY:  # a NaN
        out[...] = block.view(np.float32).astype(np.float16).view(np.uint16)
        return
    np.minimum(absolute, _filled(_OVERFLOW)[: block.size], out=absolute)
    # |x| + 2^(e + 13) leaves x, rounded to float16's last place, in the low bits of the sum's mantissa
    np.maximum(absolute, _filled(_SMALLEST_NORMAL)[: block.size], out=magic)
    np.bitwise_and(magic, _INFINITY, out=magic)
    np.add(magic, _SHIFT, out=magic)
    np.add(absolute.view(np.float32), magic.view(np.float32), out=absolute.view(np.float32))
    np.subtract(absolute, magic, out=absolute)
    np.right_shift(magic, 13, out=magic)
    np.add(absolute, magic, out=absolute)
    np.subtract(absolute, _BIAS, out=absolute)
    np.right_shift(block, 16, out=magic)
    np.bitwise_and(magic, 0x8000, out=magic)
    np.bitwise_or(absolute, magic, out=out, casting="same_kind")
