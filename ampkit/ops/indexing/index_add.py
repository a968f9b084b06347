"""Values put at the places that indices name, added up or reduced there. The order of what meets is always the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..shape.axes import axis
from ..shape.view import flatten, reshape
from .gather import _check_along, _covered, _part, places
from .index_put import assign
from .masks import kept
from .subscript import added_at, broadcast_of, grouped, in_range, length_of, part_of, pick_item, put_item

__all__ = ["index_put", "index_reduce", "put", "scatter_reduce"]


def index_put(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """input with values, broadcast, at input[indices]; accumulate: added there, as often as a place is named.

    indices: a tuple of tensors of integers or bool, one per axis, None for a whole one. Sums are carried in float32 and
    rounded once; without accumulate, of several values for one place the last stays.
    Raises RangeError for an index outside its axis, ShapeError for values that do not broadcast to the places.
    """
    if not isinstance(indices, (tuple, list)):
        raise DTypeError("index_put", "a tuple of index tensors", type(indices).__name__)
    parts = tuple([slice(None) if i is None else _along_axis(i) for i in indices])
    _need_places(input, parts)
    if input.requires_grad or values.requires_grad:  # backward reads the indices too, and they may change until then
        parts = tuple([p if type(p) is slice else p.copy() for p in parts])
    return index_put_(input, values, parts, bool(accumulate))


def _along_axis(index: Any) -> Any:
    if isinstance(index, Tensor) and not index.ndim and index.dtype != np.bool_:
        index = reshape(index, 1)
    found = part_of(index)
    if not hasattr(found, "dtype"):
        raise DTypeError("index_put", "index tensors or None", type(index).__name__)
    return found


def _need_places(input: Tensor, parts: tuple[Any, ...]) -> None:
    axis = 0
    for part in parts:
        mask = getattr(part, "dtype", None) == np.bool_
        width = part.ndim if mask else 1
        sizes = tuple(input.shape[axis : axis + width])
        if len(sizes) < width or (mask and part.shape != sizes):
            needs = f"indices for the axes of {tuple(input.shape)}"
            raise ShapeError("index_put", needs, f"a mask {tuple(part.shape)}" if mask else f"{len(parts)} of them")
        if not mask and type(part) is not slice:
            in_range("index_put", part, sizes[0], -sizes[0])
        axis += width


@op(cast=Cast.WIDEST, mixes=False)
def index_put_(input: Array, values: Array, index, accumulate):
    """`index_put`, with an index as NumPy takes it."""
    if accumulate:
        shape = input[index].shape
        if broadcast_of("index_put", values.shape, shape) != shape:
            raise ShapeError("index_put", f"values that broadcast to {shape}", f"{tuple(values.shape)}")
        here = np.broadcast_to(values.astype(input.dtype), shape)
        return input + added_at(here, index, input.shape), Saved()
    out = input.copy()
    assign(out, index, values)
    return out, Saved()


@index_put_.backward
def index_put_backward(dy, saved, needs, index, accumulate):
    dv = apply(pick_item, dy, index) if needs[1] is not None else None
    if accumulate:
        return dy, dv
    free = np.ones_like(plain(dy), np.bool_)
    free[index] = False
    return kept(dy, free), dv


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`index_put` at positions in row-major order: index [...], source as many -> the shape of input."""
    if index.numel() != source.numel():
        raise ShapeError("put", f"{index.numel()} values, one per index", f"{source.numel()}")
    flat = index_put(flatten(input), (flatten(index),), flatten(source), accumulate)
    return reshape(flat, input.shape)


# reductions at places

_MEET = {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}
_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """input with the reduction of what src puts where `gather` with this index would read; of input there too.

    reduce: "sum", "prod", "mean", "amax" or "amin"; include_self=False: of src alone. Equal extremes share the slope.
    Raises as `gather` does, ArgumentError for another reduce.
    """
    if input.ndim and index.ndim:
        return scatter_reduce_(input, dim, index, src, reduce, include_self=include_self)
    row = [t if t.ndim else reshape(t, 1) for t in (input, index, src)]
    return reshape(scatter_reduce(row[0], dim, *row[1:], reduce, include_self=include_self), input.shape)


@op(cast=Cast.WIDEST, mixes=False)
def scatter_reduce_(input: Array, dim, index: Index, src: Array, reduce, *, include_self=True):
    """`scatter_reduce`, of tensors that have axes."""
    at, part = places(plain(index), dim), _covered(src, index.shape)
    in_range("scatter_reduce", plain(index), length_of(input, dim))
    count = _count(part, at, input.shape)
    if reduce in _MEET:
        found = grouped(_MEET[reduce], part, at, input.shape, 0)
        found = _MEET[reduce](input, found) if include_self else found
    else:
        found = added_at(part, at, input.shape)
        found = found + input if include_self else found
    if reduce == "mean":
        often = np.maximum(count + int(include_self), 1)
        found = found / often if input.dtype.kind not in "biu" else (found // often).astype(input.dtype)
    out = np.where(count > 0, found, input)
    return out, Saved(input=input, index=index, src=src, out=out)


def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """input with the slices of source along `dim` reduced where index [n] names a slice; see `scatter_reduce`.

    reduce: "prod", "mean", "amax" or "amin". Raises ShapeError for a source that does not fit.
    """
    if not input.ndim:
        row = [reshape(t, -1) for t in (input, index, source)]
        return reshape(index_reduce(row[0], dim, *row[1:], reduce, include_self=include_self), ())
    at = axis("index_reduce", dim, input.ndim)
    wanted = (*input.shape[:at], index.numel(), *input.shape[at + 1 :])
    if index.ndim > 1 or tuple(source.shape) != wanted:
        needs = f"index [n] and source {[*input.shape[:at], 'n', *input.shape[at + 1 :]]}"
        raise ShapeError("index_reduce", needs.replace("'", ""), f"{list(index.shape)} and {list(source.shape)}")
    if reduce == "sum":
        raise ArgumentError("index_reduce", "reduce 'prod', 'mean', 'amax', 'amin'", "'sum'", "use index_add")
    line = reshape(index, [-1 if i == at else 1 for i in range(input.ndim)])
    places = Tensor(np.broadcast_to(line.array, source.shape))
    return scatter_reduce(input, dim, places, source, reduce, include_self=include_self)


def _count(part: Any, at: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    return added_at(np.ones_like(plain(part)), at, shape)


@scatter_reduce_.check
def scatter_reduce_check(input, dim, index, src, reduce, *, include_self):
    if reduce not in _REDUCTIONS:
        raise ArgumentError("scatter_reduce", f"reduce {', '.join(map(repr, _REDUCTIONS))}", repr(reduce))
    _check_along("scatter_reduce")(input, dim, index, src)


@scatter_reduce_.backward
def scatter_reduce_backward(dy, saved, needs, dim, reduce, include_self):
    x, src, at = saved.input, saved.src, places(plain(saved.index), dim)
    part = _covered(src, saved.index.shape)
    slopes = _slopes(reduce, x, part, at, saved.out, include_self)
    alone = _count(part, at, x.shape) == 0
    dx = np.where(alone, dy, dy * slopes[0] if include_self else 0) if needs[0] is not None else None
    if needs[2] is None:
        return dx, None, None
    ds = apply(pick_item, dy, at) * slopes[1]
    return dx, None, ds if ds.shape == src.shape else apply(put_item, ds, _part(ds.shape), src.shape)


def _slopes(reduce: str, x: Any, part: Any, at: tuple[Any, ...], out: Any, include_self: bool) -> tuple[Any, Any]:
    """How the result moves with what was there [like x], and with what came [like part]."""
    own, one = int(include_self), np.ones_like(plain(part))
    if reduce == "prod" and plain(part) is not part:
        return _others_on_the_tape(x, part, at, include_self)
    if reduce == "prod":
        return _others(x, part, at, out, include_self)
    if reduce in ("amax", "amin"):
        hit = (plain(part) == plain(out)[at]).astype(one.dtype)
        stays = (plain(x) == plain(out)).astype(one.dtype)
        share = 1 / np.maximum(added_at(hit, at, x.shape) + own * stays, 1)
        return stays * share, hit * share[at]
    share = 1 / np.maximum(_count(part, at, x.shape) + own, 1) if reduce == "mean" else np.ones_like(plain(x))
    return share, share[at]


def _others(x: Any, part: Any, at: tuple[Any, ...], out: Any, include_self: bool) -> tuple[Any, Any]:
    # The product of the others: of no zeros by division, beside the only zero the rest, else 0.
    zero, here = plain(x) == 0, plain(part) == 0
    own = zero if include_self else np.zeros_like(zero)
    zeros = added_at(here.astype(part.dtype), at, x.shape) + own
    rest = grouped(np.multiply, np.where(here, 1, plain(part)), at, x.shape, 1)
    rest = np.where(zeros == 1, rest * np.where(zero, 1, plain(x)) if include_self else rest, 0)
    mine = np.where(zero, rest, out / np.where(zero, 1, x))
    return mine, np.where(here, rest[at], apply(pick_item, out, at) / np.where(here, 1, part))


def _others_on_the_tape(x: Any, part: Any, at: tuple[Any, ...], include_self: bool) -> tuple[Any, Any]:
    # The products of those before and after: without a division, so that the slope at a zero has a slope too.
    cells = np.arange(x.size, like=plain(x))
    keys = cells.reshape(x.shape)[at].reshape(-1)
    if include_self:
        keys, values = np.concatenate([cells, keys]), np.concatenate([x.reshape(-1), part.reshape(-1)])
    else:
        values = part.reshape(-1)
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    both = _products_before(values, keys) * np.flip(_products_before(np.flip(values, 0), np.flip(keys, 0)), 0)
    found, own = both[np.argsort(order)], x.size if include_self else 0
    mine = found[:own].reshape(x.shape) if include_self else np.zeros_like(plain(x))
    return mine, found[own:].reshape(part.shape)


def _products_before(values: Any, keys: Any) -> Any:
    # The product of the values before each one under the same key; keys are sorted. In log n steps.
    if not keys.size:
        return values
    ones = np.ones_like(plain(values))
    found, step = np.concatenate([ones[:1], np.where(keys[1:] == keys[:-1], values[:-1], ones[1:])], 0), 1
    while step < keys.size:
        same = keys[step:] == keys[:-step]
        joined = np.where(same, found[step:] * found[:-step], found[step:])
        found, step = np.concatenate([found[:step], joined], 0), 2 * step
    return found
