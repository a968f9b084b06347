"""CPU kernels of concatenation: large arrays are copied by all threads into cached memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.copies import copy
from ampkit.backends.cpu.native.arrays import Function, HostArray, available, empty
from ampkit.kernels.shared.shape import register_join_split

_LARGE = 1 << 16  # elements; NumPy copies fewer as fast
_join = Function("join", "pppii")


def _worth(arrays: Sequence[HostArray]) -> bool:
    large = available() and sum([array.size for array in arrays]) >= _LARGE
    return large and len({array.dtype for array in arrays}) == 1


def _joined(arrays: Sequence[HostArray], dim: int) -> HostArray:
    shape = list(arrays[0].shape)
    dim %= len(shape)
    shape[dim] = sum([array.shape[dim] for array in arrays])
    out, start, rows = empty(shape, arrays[0].dtype), 0, prod(shape[:dim])
    if rows > 1 and all(array.flags.c_contiguous for array in arrays):
        count = len(arrays)
        places, lengths = map(address, arrays), [array.nbytes // rows for array in arrays]
        _join(address(out), struct.pack(f"{count}P", *places), struct.pack(f"{count}q", *lengths), count, rows)
        return out
    for array in arrays:
        end = start + array.shape[dim]
        copy(out[(slice(None),) * dim + (slice(start, end),)], array)
        start = end
    return out


register_join_split("cpu", _joined, _worth)
