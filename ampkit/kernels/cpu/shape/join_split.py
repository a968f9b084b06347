"""CPU kernels of concatenation: large arrays are copied by all threads into cached memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.copies import copy
from ampkit.backends.cpu.native.arrays import Function, HostArray, available, empty
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.shape import join_split

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


@join_split.cat_.on("cpu", when=lambda tensors, dim: _worth(tensors))
def cat_cpu(tensors: list[HostArray], dim: int, *, dtype: DType) -> Any:
    return _joined(tensors, dim), Saved(lengths=tuple([t.shape[dim] for t in tensors]))


@join_split.stack_.on("cpu", when=lambda tensors, dim: _worth(tensors))
def stack_cpu(tensors: list[HostArray], dim: int, *, dtype: DType) -> Any:
    at = dim % (tensors[0].ndim + 1)
    lead = (slice(None),) * at
    return _joined([t[(*lead, None)] for t in tensors], at), Saved()


def _pieces_fit(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
    return type(dy) is tuple and _worth(dy)


@join_split.split_.on_backward("cpu", when=_pieces_fit)
def split_backward_cpu(dy: Any, saved: Saved, needs: Any, ends: Any, dim: int) -> HostArray:
    return _joined(dy, dim)


@join_split.unbind_.on_backward("cpu", when=_pieces_fit)
def unbind_backward_cpu(dy: Any, saved: Saved, needs: Any, dim: int) -> HostArray:
    return _joined([each[(slice(None),) * dim + (None,)] for each in dy], dim)
