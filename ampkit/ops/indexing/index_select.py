"""Slices along an axis by index: index_select, index_add, index_copy, index_fill, and index_put."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.array_kinds import on_device
from ampkit.base.errors import DTypeError, RangeError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.casts import to_accumulator
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import axis_length, broadcast_shape, check_index_range, check_integer_index, normalize_axis
from ..creation.constants import full_like
from ..pointwise.selection import masked_fill, select_or_zero
from ..shape.view import broadcast_to, flatten, reshape
from .deterministic_scatter import add_at, assign_last_wins
from .gather_scatter import scatter_
from .getitem import advanced_getitem, beside, parse_index_item, put_into_zeros

__all__ = ["index_add", "index_copy", "index_fill", "index_put", "index_select", "put"]


def _slice_index(index: Any, dim: int, ndim: int) -> tuple[Any, ...]:
    # NumPy's index of the slices `index` along `dim`; a 0-d tensor is its only slice.
    return (slice(None),) * (dim % ndim) + (plain(index).reshape(-1),) if ndim else ()


def _check_slice_index(name: str, index: Any, ndim: int) -> None:
    if index.ndim > 1 or (not ndim and index.size != 1):
        needs = "an index of at most one axis" if ndim else "one index for a 0-d tensor"
        raise ShapeError(name, needs, f"shape {tuple(index.shape)}")


@op(cast=Cast.KEEP, moves=True, opaque=True)
def index_select(input: Array, dim, index: Index):
    """The slices of input along `dim` at index [n]. Raises RangeError for an index out of range."""
    check_index_range("index_select", plain(index), axis_length(input, dim))
    out = np.take(input, plain(index).reshape(-1), dim) if input.ndim else input.copy()
    return out, Saved(index=index, shape=input.shape)


@index_select.check
def index_select_check(input, dim, index):
    normalize_axis("index_select", dim, input.ndim)
    check_integer_index("index_select", index)
    _check_slice_index("index_select", index, input.ndim)


@index_select.backward
def index_select_backward(dy, saved, needs, dim):
    return apply(put_into_zeros, to_accumulator(dy), _slice_index(saved.index, dim, dy.ndim), saved.shape), None


@op(cast=Cast.WIDEST, mixes=False)
def index_add(input: Array, dim, index: Index, source: Array, *, alpha: float = 1):
    """input plus alpha * source [.., n, ..], slice i of `dim` added at index[i]; sums in float32, rounded once."""
    check_index_range("index_add", plain(index), axis_length(input, dim))
    # alpha * 0 would be NaN for an alpha of infinity, so the product is formed before the zeros are
    terms = alpha * source
    terms = np.asarray(terms) if isinstance(terms, np.generic) else terms  # of a 0-d tensor
    terms = terms.astype(np.bool_) if plain(input).dtype == np.bool_ else terms
    added = apply(put_into_zeros, terms, _slice_index(index, dim, input.ndim), input.shape)
    total = input + added
    return total.astype(np.bool_) if plain(input).dtype == np.bool_ else total, Saved(index=index)


@index_add.check
def index_add_check(input, dim, index, source, alpha):
    at = normalize_axis("index_add", dim, input.ndim)
    check_integer_index("index_add", index)
    _check_slice_index("index_add", index, input.ndim)
    needed = (*input.shape[:at], index.size, *input.shape[at + 1 :]) if input.ndim else ()
    if source.shape != needed:
        raise ShapeError("index_add", f"source of shape {needed}", f"{tuple(source.shape)}")


@index_add.backward
def index_add_backward(dy, saved, needs, dim, alpha):
    return dy, None, alpha * apply(advanced_getitem, dy, _slice_index(saved.index, dim, dy.ndim)) if needs[2] else None


def index_put(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """input with values, broadcast, written to input[indices], or added with accumulate=True.

    indices: a tuple of integer or bool tensors, one per axis, None for a whole axis. Repeated indices accumulate in
    float32, rounded once; without accumulate the last value wins.
    Raises RangeError for an index out of range, ShapeError for values that do not broadcast to input[indices].
    """
    if not isinstance(indices, (tuple, list)):
        raise DTypeError("index_put", "a tuple of index tensors", type(indices).__name__)
    parts = tuple([slice(None) if i is None else _parse_tensor_index(i) for i in indices])
    _check_indices(input, parts)
    if input.requires_grad or values.requires_grad:
        # Copied: backward reads the indices, and the caller may change them before.
        parts = tuple([p if type(p) is slice else p.copy() for p in parts])
    try:
        return index_put_(beside(input, parts), values, parts, bool(accumulate))
    except IndexError as error:  # NumPy's, of indices that do not broadcast
        raise RangeError("index_put", f"indices within shape {tuple(input.shape)}", str(error)) from None


def _parse_tensor_index(index: Any) -> Any:
    if isinstance(index, Tensor) and not index.ndim and index.array.dtype != np.bool_:
        index = reshape(index, 1)
    found = parse_index_item(index)
    if not hasattr(found, "dtype"):
        raise DTypeError("index_put", "index tensors or None", type(index).__name__)
    return found


def _check_indices(input: Tensor, parts: tuple[Any, ...]) -> None:
    axis = 0
    for part in parts:
        mask = getattr(part, "dtype", None) == np.bool_
        width = part.ndim if mask else 1
        sizes = tuple(input.shape[axis : axis + width])
        if len(sizes) < width or (mask and part.shape != sizes):
            needs = f"indices for the axes of {tuple(input.shape)}"
            raise ShapeError("index_put", needs, f"a mask {tuple(part.shape)}" if mask else f"{len(parts)} of them")
        if not mask and type(part) is not slice:
            check_index_range("index_put", part, sizes[0], -sizes[0])
        axis += width


@op(cast=Cast.WIDEST, mixes=False)
def index_put_(input: Array, values: Array, index, accumulate):
    """`index_put`, with the index in NumPy's form."""
    if accumulate:
        shape = input[index].shape
        if broadcast_shape("index_put", values.shape, shape) != shape:
            raise ShapeError("index_put", f"values that broadcast to {shape}", f"{tuple(values.shape)}")
        here = np.broadcast_to(values.astype(input.dtype), shape)
        return input + add_at(here, index, input.shape), Saved()
    out = input.copy()
    try:
        assign_last_wins(out, index, values)
    except ValueError:  # NumPy's
        raise ShapeError("index_put", f"values that broadcast to {input[index].shape}", f"{values.shape}") from None
    return out, Saved()


@index_put_.backward
def index_put_backward(dy, saved, needs, index, accumulate):
    dv = apply(advanced_getitem, dy, index) if needs[1] is not None else None
    if accumulate:
        return dy, dv
    free = np.ones_like(on_device(plain(dy)), np.bool_, shape=dy.shape)  # the same for all samples of a `vmap`
    free[index] = False
    return select_or_zero(dy, free), dv


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`index_put` into the flattened input: index [...], source of as many elements -> the shape of input."""
    if index.numel() != source.numel():
        raise ShapeError("put", f"{index.numel()} values, one per index", f"{source.numel()}")
    flat = index_put(flatten(input), (flatten(index),), flatten(source), accumulate)
    return reshape(flat, input.shape)


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """input with the number `value` in the slices index [n] of `dim`.

    Raises RangeError for an index out of range, ShapeError for an index of more than one axis.
    """
    if not input.ndim:
        return reshape(index_fill(reshape(input, 1), dim, index, value), ())
    at = normalize_axis("index_fill", dim, input.ndim)
    column = _index_along_axis("index_fill", index, at, input.ndim)
    shape = tuple(index.numel() if i == at else n for i, n in enumerate(input.shape))
    mask = scatter_(full_like(input, 0, dtype=np.bool_), at, broadcast_to(column, shape), True)
    return masked_fill(input, mask, value)


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """input with slice index[i] of `dim` replaced by slice i of source [.., n, ..]; of repeated indices the last wins.

    Raises ShapeError if source does not fit, RangeError for an index out of range.
    """
    if not input.ndim:
        return reshape(index_copy(reshape(input, 1), dim, index, reshape(source, -1)), ())
    at = normalize_axis("index_copy", dim, input.ndim)
    needed = (*input.shape[:at], index.numel(), *input.shape[at + 1 :])
    if tuple(source.shape) != needed:
        raise ShapeError("index_copy", f"source of shape {needed}", f"{tuple(source.shape)}")
    column = _index_along_axis("index_copy", index, at, input.ndim)
    return scatter_(input, at, broadcast_to(column, needed), source)


def _index_along_axis(where: str, index: Tensor, at: int, ndim: int) -> Tensor:
    # Reshape an index [n] to lie along axis `at` of `ndim` axes.
    if index.ndim > 1:
        raise ShapeError(where, "an index of at most one axis", f"shape {tuple(index.shape)}")
    return reshape(index, *(-1 if i == at else 1 for i in range(ndim)))
