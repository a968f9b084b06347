"""Indexing: elements picked by slices, positions and masks, and the sums that put them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import backends
from ..core.dtypes import accumulator
from ..core.errors import AmpkitError, DTypeError, RangeError, ShapeError
from ..core.op import Array, Index, Saved, op
from ..core.policy import Cast
from ..core.replay import apply, plain
from ..core.tensor import Tensor
from ..core.words import Word
from .axes import axis, axis_of
from .masks import kept
from .shape import broadcast_to, flatten

__all__ = [
    "gather", "index_add", "index_select", "masked_select", "narrow", "scatter_add", "select",
    "take_along_dim",
]  # fmt: skip


def wide(dy: Any) -> Any:
    """`dy` in the format that its sums are carried in."""
    dtype = accumulator(dy.dtype)
    return dy if dy.dtype == dtype else dy.astype(dtype)


# getitem and what undoes it


def getitem(input: Tensor, index: Any) -> Tensor:
    """input[index]: integers, slices, None, ..., and tensors of integers or bool, as in NumPy.

    Slices share memory. The gradient is added up in float32 where an element was picked more than once.
    Raises RangeError outside an axis, DTypeError for an index of another kind.
    """
    parts = tuple([part_of(i) for i in index]) if type(index) is tuple else part_of(index)
    try:
        if _is_basic(parts):
            return view_item(input, parts)  # type: ignore[no-any-return]
        first, parts = in_turn(parts if type(parts) is tuple else (parts,))
        input = input if first is None else view_item(input, first)
        if input.requires_grad:  # backward reads the indices too, and they may change until then
            parts = tuple([p if type(p) in _PLAIN else p.copy() for p in parts])
        return pick_item(input, parts)  # type: ignore[no-any-return]
    except IndexError as error:
        if isinstance(error, AmpkitError):
            raise
        raise _index_error(input, error) from None


_PLAIN = (int, slice, type(None), type(...))


def part_of(part: Any) -> Any:
    """One part of an index as NumPy takes it. Raises DTypeError for what is no index."""
    if type(part) in _PLAIN:
        return part
    if isinstance(part, Tensor):
        part = part.array
    elif isinstance(part, (list, range)):
        part = np.asarray(part, None if len(part) else np.int64)
    elif hasattr(part, "__index__") and type(part) is not bool:
        return part.__index__()
    kind = getattr(getattr(part, "dtype", None), "kind", None)
    if kind not in ("i", "u", "b"):
        got = part.dtype.name if hasattr(part, "dtype") else type(part).__name__
        raise DTypeError("index", "integers, slices, None, ... or tensors of integers or bool", got)
    if part.dtype == np.uint8:
        raise DTypeError("index", "integers or bool", "uint8, which may mean either", "say which: .long() or .bool()")
    return int(part) if part.ndim == 0 and kind != "b" else part


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
    out = np.zeros(shape, input.dtype, like=input)
    if _is_basic(index):
        out[index] = input
    else:
        np.add.at(out, index, input)
    return out, Saved()


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
    return view_item(input, (slice(None),) * at + (slice(first, first + length),))  # type: ignore[no-any-return]


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The slice of input at `index` of `dim`; shares memory."""
    return getitem(input, (slice(None),) * axis_of("select", input, dim) + (index,))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements of input where mask (bool, broadcast with input) is true: [n], in row-major order."""
    if mask.dtype != np.bool_:
        raise DTypeError("masked_select", "a mask of dtype bool", mask.dtype.name)
    shape = _together("masked_select", input.shape, mask.shape)
    return getitem(broadcast_to(input, shape), broadcast_to(mask, shape))


def _together(where: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        found = " and ".join(str(tuple(shape)) for shape in shapes)
        raise ShapeError(where, "shapes that broadcast", found) from None


# whole slices along an axis


def _in_range(name: str, index: Any, length: int, lowest: int = 0) -> None:
    def fail(value: int, position: Any) -> None:
        raise RangeError(name, f"indices from {lowest} to {length - 1}", f"{value} at position {position}")

    backends.of(index).inspect(index, (index < lowest) | (index >= length), fail)


def _need_integers(name: str, index: Any) -> None:
    if plain(index).dtype.kind not in "iu":
        raise DTypeError(name, "an index of integers", plain(index).dtype.name)


def _length(input: Any, dim: int) -> int:
    return input.shape[dim] if input.ndim else 1  # type: ignore[no-any-return]


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
    _in_range("index_select", plain(index), _length(input, dim))
    out = np.take(input, plain(index).reshape(-1), dim) if input.ndim else input.copy()
    return out, Saved(index=index, shape=input.shape)


@index_select.check
def index_select_check(input, dim, index):
    axis("index_select", dim, input.ndim)
    _need_integers("index_select", index)
    _need_row("index_select", index, input.ndim)


@index_select.backward
def index_select_backward(dy, saved, needs, dim):
    return apply(put_item, wide(dy), _row(saved.index, dim, dy.ndim), saved.shape), None


@op(cast=Cast.WIDEST)
def index_add(input: Array, dim, index: Index, source: Array, *, alpha=1):
    """input plus alpha * source [.., n, ..], slice i of `dim` added at index[i]; sums in float32, rounded once."""
    _in_range("index_add", plain(index), _length(input, dim))
    added = apply(put_item, source, _row(index, dim, input.ndim), input.shape)
    return input + alpha * added, Saved(index=index)


@index_add.check
def index_add_check(input, dim, index, source, alpha):
    at = axis("index_add", dim, input.ndim)
    _need_integers("index_add", index)
    _need_row("index_add", index, input.ndim)
    needed = (*input.shape[:at], index.size, *input.shape[at + 1 :]) if input.ndim else ()
    if source.shape != needed:
        raise ShapeError("index_add", f"source of shape {needed}", f"{tuple(source.shape)}")


@index_add.backward
def index_add_backward(dy, saved, needs, dim, alpha):
    return dy, None, alpha * apply(pick_item, dy, _row(saved.index, dim, dy.ndim)) if needs[2] else None


# single elements along an axis


@op(cast=Cast.KEEP, moves=True)
def gather(input: Array, dim, index: Index, *, sparse_grad: Word = False):
    """out[i][j] = input[index[i][j]][j] for dim 0, and so on: index [...] no longer than input on other axes -> [...].

    Raises RangeError for an index outside the axis, ShapeError if index does not fit input.
    """
    _in_range("gather", plain(index), _length(input, dim))
    return input[places(plain(index), dim)], Saved(index=index, shape=input.shape)


def places(index: Any, dim: int) -> tuple[Any, ...]:
    """Where the elements that `index` names along `dim` lie: one index array per axis."""
    if not index.ndim:
        return ()
    shape, at = index.shape, dim % index.ndim
    grid = [np.arange(n, like=index).reshape((-1,) + (1,) * (len(shape) - 1 - i)) for i, n in enumerate(shape)]
    return (*grid[:at], index, *grid[at + 1 :])


def _check_along(name: str) -> Callable[..., None]:
    def check(input: Any, dim: int, index: Any, *rest: Any, **params: Any) -> None:
        at = axis(name, dim, input.ndim)
        _need_integers(name, index)
        longer = any(n > m for i, (n, m) in enumerate(zip(index.shape, input.shape, strict=False)) if i != at)
        if index.ndim != input.ndim or longer:
            needs = f"an index of {input.ndim} axes, no longer than {tuple(input.shape)} outside dim {dim}"
            raise ShapeError(name, needs, f"{tuple(index.shape)}")
        size = getattr(rest[0], "shape", ()) if rest else ()
        if size and (len(size) != index.ndim or any(n > m for n, m in zip(index.shape, size, strict=True))):
            raise ShapeError(name, f"src that covers index's shape {tuple(index.shape)}", f"{tuple(size)}")

    return check


def _part(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple([slice(0, n) for n in shape])


def _covered(src: Any, shape: tuple[int, ...]) -> Any:
    # The part of `src` that is read where it is larger than the index.
    return src if getattr(src, "shape", ()) in ((), shape) else src[_part(shape)]


def _read(dy: Any, where: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    # The gradient of `src` of `shape`: what it was written to, 0 for the part that was not read.
    found = apply(pick_item, dy, where)
    return found if shape in ((), found.shape) else apply(put_item, found, _part(found.shape), shape)


gather.check(_check_along("gather"))


@gather.backward
def gather_backward(dy, saved, needs, dim):
    return apply(put_item, wide(dy), places(plain(saved.index), dim), saved.shape), None


@op(cast=Cast.WIDEST)
def scatter_add(input: Array, dim, index: Index, src: Array):
    """input with src added at the places that `gather` with this index would read; sums in float32, rounded once."""
    _in_range("scatter_add", plain(index), _length(input, dim))
    part = _covered(src, index.shape)
    return input + apply(put_item, part, places(plain(index), dim), input.shape), Saved(index=index, size=src.shape)


scatter_add.check(_check_along("scatter_add"))


@scatter_add.backward
def scatter_add_backward(dy, saved, needs, dim):
    return dy, None, _read(dy, places(plain(saved.index), dim), saved.size) if needs[2] else None


@op(cast=Cast.WIDEST, moves=True)
def scatter_(input: Array, dim, index: Index, src: Array):
    """`scatter`: src is a tensor that covers index, or a number; where several meet, the last stays."""
    _in_range("scatter", plain(index), _length(input, dim))
    out = input.copy()
    out[places(plain(index), dim)] = _covered(src, index.shape)
    return out, Saved(index=index, size=getattr(src, "shape", ()))


scatter_.check(_check_along("scatter"))


@scatter_.backward
def scatter_backward(dy, saved, needs, dim):
    where = places(plain(saved.index), dim)
    free = np.ones(dy.shape, np.bool_, like=plain(dy))
    free[where] = False
    return kept(dy, free), None, _read(dy, where, saved.size) if needs[2] else None


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The elements that `indices` name along `dim`, the other axes broadcast; without dim, of the flat input."""
    if dim is None:
        return getitem(flatten(input), flatten(indices))
    at = axis("take_along_dim", dim, input.ndim)
    if input.ndim != indices.ndim:
        raise ShapeError("take_along_dim", f"indices of {input.ndim} axes", f"shape {tuple(indices.shape)}")
    others = [tuple([1 if i == at else n for i, n in enumerate(t.shape)]) for t in (input, indices)]
    shape = _together("take_along_dim", *others)
    if not shape:
        return gather(input, at, indices)  # type: ignore[no-any-return]
    lengths = [(*shape[:at], t.shape[at], *shape[at + 1 :]) for t in (input, indices)]
    return gather(broadcast_to(input, lengths[0]), at, broadcast_to(indices, lengths[1]))  # type: ignore[no-any-return]
