"""CPU kernels of padding: copied by all threads, into cached memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.copies import copy, fill
from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, empty
from ampkit.base.dtypes import DType
from ampkit.base.memory_format import channels_are_last, inverse
from ampkit.core.autograd.saved import Saved
from ampkit.ops.shape.padding import pad_, pad_from_input


def _to_pad(input: HostArray, widths: Any) -> tuple[HostArray, HostArray]:
    """An array for the padded input, channels-last where the input is; and its part that the input is to fill."""
    shape = [n + before + after for n, (before, after) in zip(input.shape, widths, strict=True)]
    order = (0, *range(2, input.ndim), 1) if channels_are_last(input) else tuple(range(input.ndim))
    out = empty([shape[axis] for axis in order], input.dtype).transpose(inverse(order))
    return out, out[_inner(input.shape, widths)]


def _inner(shape: tuple[int, ...], widths: Any) -> tuple[slice, ...]:
    return tuple([slice(before, before + n) for n, (before, _) in zip(shape, widths, strict=True)])


@pad_.on("cpu", when=lambda input, widths, value: len(widths) > 0, min_elements=MIN_ELEMENTS)
def pad_cpu(input: HostArray, widths: Any, value: Any, *, dtype: DType) -> Any:
    out, inner = _to_pad(input, widths)
    fill(out, np.array(input.dtype.type(value), input.dtype))
    copy(inner, input)
    return out, Saved()


@pad_from_input.on("cpu", min_elements=MIN_ELEMENTS)
def pad_from_input_cpu(input: HostArray, widths: Any, mode: str, *, dtype: DType) -> Any:
    out, inner = _to_pad(input, widths)
    copy(inner, input)
    at = list(_inner(input.shape, widths))  # the part that is written; grows along one axis after the other
    for axis in reversed(range(input.ndim)):
        before, after = widths[axis]
        n = input.shape[axis]
        for first, end in ((0, before), (before + n, before + n + after)):
            if first == end:
                continue
            source = _source(mode, first, end, before, n)
            target = out[(*at[:axis], slice(first, end), *at[axis + 1 :])]
            copy(target, np.broadcast_to(out[(*at[:axis], source, *at[axis + 1 :])], target.shape))
        at[axis] = slice(None)
    return out, Saved()


def _source(mode: str, first: int, end: int, before: int, n: int) -> slice:
    """Which positions of the padded axis, of `n` elements behind `before`, the padding from first to end repeats."""
    if mode == "circular":
        by = n if first == 0 else -n
        return slice(first + by, end + by)
    edge = before if first == 0 else before + n - 1
    if mode == "replicate":
        return slice(edge, edge + 1)
    stop = 2 * edge - end
    return slice(2 * edge - first, None if stop < 0 else stop, -1)  # mirrored at the edge
