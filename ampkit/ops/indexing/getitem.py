"""`x[index]`, its transpose (values put into zeros), and narrow, select, masked_select."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import AmpkitError, DTypeError, RangeError, ShapeError
from ampkit.core.arguments import is_whole
from ampkit.core.autograd.traced_array import apply
from ampkit.core.casts import to_accumulator
from ampkit.core.dispatch.batching.array import BatchedArray, innermost
from ampkit.core.dispatch.batching.boundary import lift
from ampkit.core.dlpack import is_foreign, to_tensor
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import broadcast_shape, normalize_axis_of
from ..shape.view import broadcast_to
from .deterministic_scatter import add_at, index_on_device_of

__all__ = ["masked_select", "narrow", "select"]


def getitem(input: Tensor, index: Any) -> Tensor:
    """input[index]: integers, slices, None, ..., and tensors of integers or bool, as in NumPy.

    Basic indices (integers, slices, None, ...) return a view. Where an element is selected more than once its gradients
    are summed in float32. Raises RangeError for an index out of range, DTypeError for an index of another type.
    """
    parts = parse_index(index)
    try:
        if _is_basic(parts):
            return basic_getitem(input, parts)
        first, parts = split_mixed_index(parts)
        input = input if first is None else basic_getitem(input, first)
        with backends.device_guard(input.array, *parts, where="index"):
            if input.requires_grad:  # copied: backward reads the indices, and the caller may change them before
                parts = tuple([p if type(p) in _BASIC else p.copy() for p in parts])
            return advanced_getitem(beside(input, parts), parts)
    except IndexError as error:
        if isinstance(error, AmpkitError):
            raise
        raise RangeError("index", f"indices within shape {tuple(input.shape)}", str(error)) from None


def beside(input: Tensor, parts: tuple[Any, ...]) -> Tensor:
    """The input as each sample of a `vmap` has it, where an index is one of each: the call is one on batched arrays."""
    level = innermost(parts)
    return input if level is None or innermost((input.array,)) is level else lift(input, level)


_BASIC = frozenset((int, slice, type(None), type(...)))


def parse_index(index: Any) -> tuple[Any, ...]:
    """An index as a tuple of what NumPy accepts; see `parse_index_item`.

    A list that is no array of numbers is one item for each axis, as a tuple is: `x[[slice(None), [0, 2]]]`.
    """
    if type(index) is list and not _is_array_like(index):
        index = tuple(index)
    if type(index) is not tuple:
        return (parse_index_item(index),)
    return tuple([parse_index_item(part) for part in index])


def parse_index_item(part: Any) -> Any:
    """Convert one item of an index to what NumPy accepts; raise DTypeError for anything that is not an index."""
    if type(part) in _BASIC:
        return part
    if isinstance(part, Tensor):
        part = part.array
    elif isinstance(part, (list, range)):
        part = _listed(part)
    elif is_foreign(part):
        part = to_tensor(part).array
    elif type(part) is not bool and is_whole(part):
        return index(part)
    kind = getattr(getattr(part, "dtype", None), "kind", None)
    if kind not in ("i", "u", "b") or not hasattr(part, "astype"):
        got = getattr(getattr(part, "dtype", None), "name", type(part).__name__)
        raise DTypeError("index", "integers, slices, None, ... or tensors of integers or bool", got)
    if part.dtype == np.uint8:
        raise DTypeError("index", "integers or bool", "uint8, which is ambiguous", "cast it: .long() or .bool()")
    return int(part) if part.ndim == 0 and kind != "b" and not isinstance(part, BatchedArray) else part


def _is_array_like(items: list[Any]) -> bool:
    """Whether a list holds numbers, or lists of one length, and so no slices, None, ... or tensors."""
    lengths = {len(item) if isinstance(item, (list, range)) else -1 for item in items}
    return len(lengths) < 2 and not any(isinstance(item, (slice, type(None), type(...), Tensor)) for item in items)


def _listed(part: Any) -> Any:
    try:
        return np.asarray(part, None if len(part) else np.int64)
    except ValueError:
        raise ShapeError("index", "nested lists of equal lengths", repr(part)[:80]) from None


def split_mixed_index(parts: tuple[Any, ...]) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
    """Split an index that contains arrays into a basic index (or None) applied first, and one with the arrays.

    Integers go to the first part: NumPy would treat them as index arrays, and move the indexed axes to the front where
    a slice separates them, which PyTorch does not.
    """
    if all(type(p) in (slice, type(...)) or hasattr(p, "dtype") for p in parts):
        return None, parts
    first: list[Any] = []
    then: list[Any] = []
    for part in parts:
        if hasattr(part, "dtype"):
            first += [slice(None)] * (part.ndim if part.dtype == np.bool_ else 1)
            then.append(part)
        else:
            first.append(part)
            then += [] if type(part) is int else [part if part is ... else slice(None)]
    return tuple(first), tuple(then)


def _is_basic(parts: Any) -> bool:
    return _BASIC.issuperset(map(type, parts)) if type(parts) is tuple else type(parts) in _BASIC


@op(cast=Cast.KEEP, moves=True, view=True)
def basic_getitem(input: Array, index):
    """input[index] for a basic index (integers, slices, None, ...), as a view."""
    out = input[index]
    if isinstance(out, np.generic):  # a NumPy scalar: with an ellipsis it is a 0-d view
        out = input[(*index, ...) if type(index) is tuple else (index, ...)]
    return out, Saved(shape=input.shape)


@basic_getitem.backward
def basic_getitem_backward(dy, saved, needs, index):
    return apply(put_into_zeros, dy, index, saved.shape)


@op(cast=Cast.KEEP, moves=True, opaque=True)
def advanced_getitem(input: Array, index):
    """input[index] for an index that contains arrays, as a copy."""
    return input[index], Saved(shape=input.shape)


@advanced_getitem.backward
def advanced_getitem_backward(dy, saved, needs, index):
    return apply(put_into_zeros, to_accumulator(dy), index, saved.shape)


@op(cast=Cast.KEEP)
def put_into_zeros(input: Array, index, shape):
    """Zeros of `shape` with `input` added at [index]: the transpose of getitem."""
    if not _is_basic(index):
        return add_at(input, index_on_device_of(input, index), shape), Saved()
    out = np.zeros(shape, input.dtype, like=input)
    out[index] = input
    return out, Saved()


@put_into_zeros.backward
def put_into_zeros_backward(dy, saved, needs, index, shape):
    return apply(basic_getitem if _is_basic(index) else advanced_getitem, dy, index)


def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements of axis `dim` from `start`; shares memory. Raises RangeError for a range outside the axis."""
    at = normalize_axis_of("narrow", input, dim)
    size = input.shape[at]
    first = start + size if start < 0 else start
    if not 0 <= first <= first + length <= size:
        raise RangeError("narrow", f"a range within the {size} elements of dim {dim}", f"{start} to {start + length}")
    return basic_getitem(input, (slice(None),) * at + (slice(first, first + length),))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The slice of input at `index` of `dim`; shares memory."""
    return getitem(input, (slice(None),) * normalize_axis_of("select", input, dim) + (index,))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements of input where mask (bool, broadcast with input) is true: [n], in row-major order."""
    if mask.array.dtype != np.bool_:
        raise DTypeError("masked_select", "a mask of dtype bool", mask.dtype.name)
    shape = broadcast_shape("masked_select", input.shape, mask.shape)
    return getitem(broadcast_to(input, shape), broadcast_to(mask, shape))
