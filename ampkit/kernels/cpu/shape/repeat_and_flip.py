"""CPU kernels of repeating, flipping and rolling: copied by all threads, into cached memory."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from ampkit.backends.cpu.copies import copy
from ampkit.backends.cpu.native.arrays import HostArray, empty, reshape_view
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.shape.repeat_and_flip import flip_, repeat_, repeat_interleave_, roll_

_LARGE = 1 << 16  # elements; NumPy moves fewer as fast


@repeat_.on("cpu", when=lambda input, sizes: any(n != 1 for n in sizes), min_elements=_LARGE)
def repeat_cpu(input: HostArray, sizes: Any, *, dtype: DType) -> Any:
    """The result, seen as [size, length] for each axis, is the input broadcast along each size."""
    shape = (1,) * (len(sizes) - input.ndim) + input.shape
    out = empty([n * length for n, length in zip(sizes, shape, strict=True)], input.dtype)
    pairs = reshape_view(out, [n for pair in zip(sizes, shape, strict=True) for n in pair])
    source = input.reshape([n for length in shape for n in (1, length)])
    copy(pairs, np.broadcast_to(source, pairs.shape))
    return out, Saved(shape=input.shape)


@repeat_interleave_.on("cpu", min_elements=_LARGE)
def repeat_interleave_cpu(input: HostArray, repeats: int, dim: int, *, dtype: DType) -> Any:
    at = dim % input.ndim + 1
    before, behind = input.shape[:at], input.shape[at:]
    out = empty((*before[:-1], before[-1] * repeats, *behind), input.dtype)
    rows = reshape_view(out, (*before, repeats, *behind))
    copy(rows, np.broadcast_to(np.expand_dims(input, at), rows.shape))
    return out, Saved(shape=input.shape)


@flip_.on("cpu", min_elements=_LARGE)
def flip_cpu(input: HostArray, dims: Any, *, dtype: DType) -> Any:
    out = empty(input.shape, input.dtype)
    copy(out, np.flip(input, dims))
    return out, Saved()


def _rolled(x: HostArray, shifts: Any, dims: Any) -> HostArray:
    """The pieces of `x` behind and before the place where each axis is cut, in their new places."""
    if dims is None:
        return _rolled(x.reshape(-1), (shifts,), (0,)).reshape(x.shape)
    out = empty(x.shape, x.dtype)
    cuts = [0] * x.ndim
    for shift, axis in zip(shifts, dims, strict=True):
        cuts[axis] += shift
    halves = [_halves(cut % n, n) for cut, n in zip(cuts, x.shape, strict=True)]
    for pieces in product(*halves):
        to, of = zip(*pieces, strict=True)
        copy(out[to], x[of])
    return out


def _halves(cut: int, n: int) -> list[tuple[slice, slice]]:
    """(place in the result, place in the input) of each piece of an axis of `n` elements that is rolled by `cut`."""
    whole = (slice(cut, n), slice(0, n - cut))
    return [whole, (slice(0, cut), slice(n - cut, n))] if cut else [whole]


@roll_.on("cpu", when=lambda input, shifts, dims: input.flags.c_contiguous, min_elements=_LARGE)
def roll_cpu(input: HostArray, shifts: Any, dims: Any, *, dtype: DType) -> Any:
    return _rolled(input, shifts, dims), Saved()


@roll_.on_backward("cpu", min_elements=_LARGE)
def roll_backward_cpu(dy: HostArray, saved: Saved, needs: Any, shifts: Any, dims: Any) -> HostArray:
    return _rolled(dy, tuple([-s for s in shifts]) if type(shifts) is tuple else -shifts, dims)
