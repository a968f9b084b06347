"""Views by strides, as far as slices can express them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ampkit.base.errors import ArgumentError, RangeError
from ampkit.core.dispatch.batching.array import innermost
from ampkit.core.tensor import Tensor

from ..argument_checks import parse_shape

__all__ = ["as_strided"]


def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """The elements at `storage_offset` + i * `stride` of the memory of `input`, as a view of shape `size`.

    size, stride: no axis, one, or several with the strides of a row-major tensor whose axes were permuted.
    storage_offset: counted in elements from the begin of the memory that `input` shows, or shows a part of; by default
    where `input` begins.
    Raises ArgumentError for other strides, RangeError for elements that are not in `input`, StateError for an `input`
    that is not row-major.
    """
    shape, steps = parse_shape("as_strided", (size,)), parse_shape("as_strided", (stride,))
    if len(steps) != len(shape) or min((*shape, *steps), default=0) < 0:
        raise ArgumentError("as_strided", "sizes from 0, each with a stride from 0", f"{shape} and {steps}")
    order = sorted(range(len(shape)), key=lambda axis: -steps[axis])
    sizes = [shape[axis] for axis in order]
    rows = tuple([prod(sizes[order.index(axis) + 1 :]) for axis in range(len(shape))])
    in_order = all(n < 2 or step == row for n, step, row in zip(shape, steps, rows, strict=True))
    count = prod(shape)
    if len(shape) > 1 and count and not in_order:
        cure = "x.unfold(dimension, size, step) for windows, slices, permute and expand for other views"
        raise ArgumentError("as_strided", f"one axis, or row-major strides, permuted as {rows}", f"{steps}", cure)
    first = 0
    if storage_offset is not None and innermost([input.array]) is not None:
        first = storage_offset  # a sample begins where its memory does
    elif storage_offset is not None:
        first = storage_offset - (input.data_ptr() - input.untyped_storage().data_ptr()) // input.element_size()
    step = 1 if in_order or not count else steps[0]
    last = first + (count - 1) * step
    if count and not 0 <= first <= last < input.numel():
        raise RangeError("as_strided", f"elements 0 to {input.numel() - 1} of the input", f"{first} to {last}")
    flat = input.view(-1)
    if not step:
        return flat[first].expand(shape)
    found = flat[first : last + 1 : step].reshape(sizes)
    return found if order == sorted(order) else found.permute([order.index(axis) for axis in range(len(shape))])
