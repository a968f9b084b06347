"""Indexing: elements selected by slices, positions and masks, and the sums that put them back."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator
from ampkit.base.errors import AmpkitError, DTypeError, RangeError, ShapeError
from ampkit.core.arguments import is_whole, shown
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.dispatch import Primitive
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..shape.axes import axis, axis_of
from ..shape.view import broadcast_to

__all__ = ["index_add", "index_select", "masked_select", "narrow", "select"]


def wide(dy: Any) -> Any:
    """`dy` in the format that its sums are carried in."""
    dtype = accumulator(dy.dtype)
    return dy if dy.dtype == dtype else dy.astype(dtype)


# getitem and what undoes it


def getitem(input: Tensor, index: Any) -> Tensor:
    """input[index]: integers, slices, None, ..., and tensors of integers or bool, as in NumPy.

    Slices share memory. The gradient is added up in float32 where an element was selected more than once.
    Raises RangeError outside an axis, DTypeError for an index of another kind.
    """
    parts = tuple([part_of(i) for i in index]) if type(index) is tuple else part_of(index)
    try:
        if _is_basic(parts):
            return view_item(input, parts)
        first, parts = in_turn(parts if type(parts) is tuple else (parts,))
        input = input if first is None else view_item(input, first)
        with backends.device_guard(input.array, *parts, where="index"):
            if input.requires_grad:  # backward reads the indices too, and they may change until then
                parts = tuple([p if type(p) in _PLAIN else p.copy() for p in parts])
            return pick_item(input, parts)
    except IndexError as error:
        if isinstance(error, AmpkitError):
            raise
        raise _index_error(input, error) from None


_PLAIN = (int, slice, type(None), type(...))


def _listed(part: Any) -> Any:
    try:
        return np.asarray(part, None if len(part) else np.int64)
    except ValueError:
        raise DTypeError("index", "lists of integers or bool of one length", shown(part)) from None


def part_of(part: Any) -> Any:
    """One part of an index as NumPy takes it. Raises DTypeError for what is no index."""
    if type(part) in _PLAIN:
        return part
    if isinstance(part, Tensor):
        part = part.array
    elif isinstance(part, (list, range)):
        part = _listed(part)
    elif type(part) is not bool and is_whole(part):
        return index(part)
    kind = getattr(getattr(part, "dtype", None), "kind", None)
    if kind not in ("i", "u", "b") or not hasattr(part, "astype"):
        got = part.dtype.name if hasattr(part, "dtype") else type(part).__name__
        raise DTypeError("index", "integers, slices, None, ... or tensors of integers or bool", got)
    if part.dtype == np.uint8:
        raise DTypeError("index", "integers or bool", "uint8, which may mean either", "say which: .long() or .bool()")
    return int(part) if part.ndim == 0 and kind != "b" else part


def _listed(part: Any) -> Any:
    try:
        return np.asarray(part, None if len(part) else np.int64)
    except ValueError:
        raise ShapeError("index", "nested lists of equal lengths", repr(part)[:80]) from None


def in_turn(parts: tuple[Any, ...]) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
    """An index with arrays as PyTorch means it: what applies first (or None), and then the arrays.

    NumPy would count an integer among the arrays, and move their axes to the front where a slice stands between.
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
    return all(type(p) in _PLAIN for p in parts) if type(parts) is tuple else type(parts) in _PLAIN


def _index_error(input: Tensor, error: IndexError) -> RangeError:
    return RangeError("index", f"indices within shape {tuple(input.shape)}", str(error))


@op(cast=Cast.KEEP, moves=True, view=True)
def view_item(input: Array, index):
    """input[index] for slices and numbers."""
    out = input[index]
    if isinstance(out, np.generic):  # one element: an ellipsis makes it a view
        out = input[(*index, ...) if type(index) is tuple else (index, ...)]
    return out, Saved(shape=input.shape)


@view_item.backward
def view_item_backward(dy, saved, needs, index):
    return apply(put_item, dy, index, saved.shape)


@op(cast=Cast.KEEP, moves=True)
def pick_item(input: Array, index):
    """input[index] where arrays are among the indices."""
    return input[index], Saved(shape=input.shape)


@pick_item.backward
def pick_item_backward(dy, saved, needs, index):
    return apply(put_item, wide(dy), index, saved.shape)


@op(cast=Cast.KEEP)
def put_item(input: Array, index, shape):
    """Zeros of `shape` with `input` added at [index]: what undoes getitem."""
    if not _is_basic(index):
        return added_at(input, beside(input, index), shape), Saved()
    out = np.zeros(shape, input.dtype, like=input)
    out[index] = input
    return out, Saved()


def beside(values: Any, index: Any) -> Any:
    """An index whose arrays are where `values` is: lists, and places that were worked out here, are the host's."""
    there = backends.backend_of(values)
    if there.name == "cpu":
        return index
    if type(index) is tuple:
        return tuple([beside(values, part) for part in index])
    return there.constant(index) if isinstance(index, np.ndarray) else index


def _added_at(values: Any, index: Any, shape: tuple[int, ...]) -> Any:
    if type(values) is not np.ndarray:  # CuPy adds at the places of one array alone, in any order, in few dtypes
        wide = values.astype(accumulator(values.dtype))
        return grouped(np.add, wide, index, shape, 0).astype(values.dtype)
    out = np.zeros(shape, values.dtype, like=values)
    np.add.at(out, index, values)
    return out


def grouped(meet: Any, values: Any, at: Any, shape: tuple[int, ...], nothing: Any) -> Any:
    """What `meet` makes of the values of each place, `nothing` where there is none. In log n steps, without atomics."""
    cells = np.arange(int(np.prod(shape, dtype=np.int64)), like=values)
    keys = cells.reshape(shape)[at]
    values, keys = np.broadcast_to(values, keys.shape).reshape(-1), keys.reshape(-1)
    if not keys.size:
        return np.full_like(cells, nothing, values.dtype).reshape(shape)
    order = np.argsort(keys, kind="stable")
    keys, values, step = keys[order], values[order], 1
    while step < keys.size:  # each value takes in those before it of the same key, twice as many each time
        same = keys[step:] == keys[:-step]
        joined = np.where(same, meet(values[step:], values[:-step]), values[step:])
        values, step = np.concatenate([values[:step], joined]), 2 * step
    last = np.maximum(np.searchsorted(keys, cells, "right") - 1, 0)
    return np.where(keys[last] == cells, values[last], values.dtype.type(nothing)).reshape(shape)


added_at = Primitive(
    "added_at", "indexing.subscript", _added_at
)  # (values, index, shape): zeros with values added at [index]


@put_item.backward
def put_item_backward(dy, saved, needs, index, shape):
    return apply(view_item if _is_basic(index) else pick_item, dy, index)


def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements of `dim` from `start` on; shares memory. Raises RangeError if they are not there."""
    at = axis_of("narrow", input, dim)
    size = input.shape[at]
    first = start + size if start < 0 else start
    if not 0 <= first <= first + length <= size:
        raise RangeError("narrow", f"a range within the {size} elements of dim {dim}", f"{start} to {start + length}")
    return view_item(input, (slice(None),) * at + (slice(first, first + length),))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The slice of input at `index` of `dim`; shares memory."""
    return getitem(input, (slice(None),) * axis_of("select", input, dim) + (index,))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements of input where mask (bool, broadcast with input) is true: [n], in row-major order."""
    if mask.dtype != np.bool_:
        raise DTypeError("masked_select", "a mask of dtype bool", mask.dtype.name)
    shape = broadcast_of("masked_select", input.shape, mask.shape)
    return getitem(broadcast_to(input, shape), broadcast_to(mask, shape))


def broadcast_of(where: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that `shapes` broadcast to. Raises ShapeError."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        found = " and ".join(str(tuple(shape)) for shape in shapes)
        raise ShapeError(where, "shapes that broadcast", found) from None


# whole slices along an axis


def in_range(name: str, index: Any, length: int, lowest: int = 0) -> None:
    """Raise RangeError for an index outside [lowest, length)."""

    def fail(value: int, position: Any) -> None:
        raise RangeError(name, f"indices from {lowest} to {length - 1}", f"{value} at position {position}")

    backends.backend_of(index).raise_if(index, (index < lowest) | (index >= length), fail)


def need_integers(name: str, index: Any) -> None:
    """Raise DTypeError for an index of floats or booleans."""
    if plain(index).dtype.kind not in "iu":
        raise DTypeError(name, "an index of integers", plain(index).dtype.name)


def length_of(input: Any, dim: int) -> int:
    """The length of axis `dim`; a 0-d tensor counts as one of length 1."""
    return input.shape[dim] if input.ndim else 1


def _row(index: Any, dim: int, ndim: int) -> tuple[Any, ...]:
    # Where the slices along `dim` that `index` names lie; a 0-d tensor is the one slice of itself.
    return (slice(None),) * (dim % ndim) + (plain(index).reshape(-1),) if ndim else ()


def _need_row(name: str, index: Any, ndim: int) -> None:
    if index.ndim > 1 or (not ndim and index.size != 1):
        needs = "an index of at most one axis" if ndim else "one index for a 0-d tensor"
        raise ShapeError(name, needs, f"shape {tuple(index.shape)}")


@op(cast=Cast.KEEP, moves=True)
def index_select(input: Array, dim, index: Index):
    """The slices of input along `dim` that index [n] names. Raises RangeError for an index outside the axis."""
    in_range("index_select", plain(index), length_of(input, dim))
    out = np.take(input, plain(index).reshape(-1), dim) if input.ndim else input.copy()
    return out, Saved(index=index, shape=input.shape)


@index_select.check
def index_select_check(input, dim, index):
    axis("index_select", dim, input.ndim)
    need_integers("index_select", index)
    _need_row("index_select", index, input.ndim)


@index_select.backward
def index_select_backward(dy, saved, needs, dim):
    return apply(put_item, wide(dy), _row(saved.index, dim, dy.ndim), saved.shape), None


@op(cast=Cast.WIDEST, mixes=False)
def index_add(input: Array, dim, index: Index, source: Array, *, alpha: float = 1):
    """input plus alpha * source [.., n, ..], slice i of `dim` added at index[i]; sums in float32, rounded once."""
    in_range("index_add", plain(index), length_of(input, dim))
    added = apply(put_item, source, _row(index, dim, input.ndim), input.shape)
    total = input + alpha * added
    return total.astype(np.bool_) if plain(input).dtype == np.bool_ else total, Saved(index=index)


@index_add.check
def index_add_check(input, dim, index, source, alpha):
    at = axis("index_add", dim, input.ndim)
    need_integers("index_add", index)
    _need_row("index_add", index, input.ndim)
    needed = (*input.shape[:at], index.size, *input.shape[at + 1 :]) if input.ndim else ()
    if source.shape != needed:
        raise ShapeError("index_add", f"source of shape {needed}", f"{tuple(source.shape)}")


@index_add.backward
def index_add_backward(dy, saved, needs, dim, alpha):
    return dy, None, alpha * apply(pick_item, dy, _row(saved.index, dim, dy.ndim)) if needs[2] else None
