"""The CPU backend: NumPy arrays in host memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ampkit.base.array_kinds import need_unmasked
from ampkit.base.dtypes import NARROW, DType
from ampkit.base.errors import OutOfMemoryError
from ampkit.base.formats import decode_reference, encode_reference, values_of

from .. import format_casts
from . import caching_allocator, formats
from .copies import convert, copy, fill

_SMALL = 512  # elements; below, one call of NumPy is cheapest
HostArray = np.ndarray[Any, Any]


class CPU:
    """The `Backend` of NumPy arrays."""

    name = device = "cpu"

    told = "cpu"  # the device that tensors tell: another name of the CPU where that is the default device

    def device_of(self, array: HostArray) -> str:
        return self.told

    def asarray(self, values: Any, dtype: DType | None = None) -> HostArray:
        need_unmasked(values, "array")
        return np.asarray(values, dtype)

    def constant(self, values: HostArray) -> HostArray:
        """The array of `values` that only the arguments of a call decide."""
        return values

    def empty(self, shape: tuple[int, ...], dtype: DType) -> HostArray:
        try:
            return caching_allocator.empty(shape, dtype)
        except (MemoryError, OverflowError, ValueError) as error:
            raise _too_large(shape, dtype, error) from None

    def zeros(self, shape: tuple[int, ...], dtype: DType) -> HostArray:
        try:
            return caching_allocator.zeros(shape, dtype)
        except (MemoryError, OverflowError, ValueError) as error:
            raise _too_large(shape, dtype, error) from None

    def full(self, shape: tuple[int, ...], value: HostArray) -> HostArray:
        """An array of `shape`, every element of it the 0-d array `value`."""
        out = self.empty(shape, value.dtype)
        fill(out, value)
        return out

    def cast(self, array: HostArray, dtype: DType) -> HostArray:
        """`array` rounded to the nearest value of `dtype`, ties to even."""
        if dtype in NARROW or array.dtype in NARROW:
            return format_casts.cast(self, array, dtype)
        if array.size > _SMALL:
            if 0 in array.strides and (once := without_broadcast(array)).size < array.size:
                out = self.empty(array.shape, dtype)
                copy(out, np.broadcast_to(self.cast(once, dtype), array.shape))
                return out
            return convert(array, dtype)
        return array.astype(dtype)

    def copy(self, target: HostArray, source: HostArray) -> None:
        """Write `source`, broadcast, into `target`, rounded to nearest even."""
        if target.dtype in NARROW or source.dtype in NARROW:
            format_casts.copy(self, target, source)
        else:
            copy(target, source if source.shape == target.shape else np.broadcast_to(source, target.shape))

    def encode(self, values: HostArray, dtype: DType, saturate: bool) -> HostArray:
        """The uint8 codes of floating-point values in a format below 16 bits, rounded to nearest even."""
        by_kernel = values.size >= formats.MIN_ELEMENTS and formats.encodes(values, dtype)
        with np.errstate(all="ignore"):
            return (formats.encode if by_kernel else encode_reference)(values, dtype, saturate)

    def decode(self, codes: HostArray, dtype: DType, to: DType) -> HostArray:
        """The values of uint8 codes of a format below 16 bits, in the floating-point dtype `to`."""
        if codes.size >= formats.MIN_ELEMENTS and formats.decodes(to):
            return formats.decode(codes, dtype, to)
        with np.errstate(all="ignore"):
            return decode_reference(codes, dtype, values_of(dtype).astype(to))

    def to_numpy(self, array: HostArray) -> HostArray:
        return array

    def item(self, array: HostArray) -> Any:
        """The one value of `array` as a Python number; the CPU never has to wait for it."""
        return np.ndarray.item(array.view(np.ndarray))

    def call_when_ready(self, arrays: Sequence[HostArray], then: Callable[..., None]) -> None:
        """Call `then` with the values of `arrays`, as in the protocol: at once, where nothing has to be waited for."""
        held = [np.asarray(array) for array in arrays]
        then(*[self.item(array) if array.size == 1 else array.copy() for array in held])

    def record_event(self, name: str | None = None) -> float:
        """This moment, for `elapsed_time`."""
        return time.perf_counter()

    def elapsed_time(self, first: float, second: float) -> float:
        """Seconds between two marks."""
        return second - first

    def synchronize(self) -> None:
        """Nothing: whatever was to be looked at has been."""

    def raise_if(self, values: HostArray, bad: HostArray, fail: Callable[[Any, Any], None]) -> None:
        """Call `fail(value, position)` for the first of `values` that `bad` marks, at once."""
        marks = bad.view(np.ndarray)
        if marks.any():
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(marks)), marks.shape))
            fail(values.view(np.ndarray)[at].item(), at[0] if len(at) == 1 else at)

    def out_of_memory_error(self, error: MemoryError) -> MemoryError:
        """The error to raise where memory ran out."""
        if isinstance(error, OutOfMemoryError):
            return error
        return OutOfMemoryError("cpu", "more memory", str(error) or "no more of it")


def _too_large(shape: tuple[int, ...], dtype: DType, error: Exception) -> Exception:
    # For a shape whose size overflows its integers, NumPy raises ValueError or OverflowError.
    nbytes = prod(shape) * dtype.itemsize
    if isinstance(error, MemoryError) or nbytes >= 2**63:
        return OutOfMemoryError("cpu", f"{nbytes} bytes", "less", f"for a tensor of shape {tuple(shape)}, {dtype.name}")
    return error


def without_broadcast(array: HostArray) -> HostArray:
    """The view of the first index along each axis of stride 0."""
    sides = zip(array.shape, array.strides, strict=True)
    return array[tuple([slice(1 if step == 0 and length > 1 else None) for length, step in sides])]


def in_format(array: HostArray, dtype: DType) -> HostArray:
    """`array` itself if it has `dtype`, else a copy rounded to nearest even."""
    return array if array.dtype == dtype else _cpu.cast(array, dtype)


_cpu = CPU()
