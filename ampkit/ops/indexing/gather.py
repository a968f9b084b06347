"""Single elements along an axis: gathered from, and scattered to, the places that an index tensor names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..shape.axes import axis
from ..shape.view import broadcast_to, flatten
from .index_put import assign
from .masks import kept
from .subscript import broadcast_of, getitem, in_range, length_of, need_integers, pick_item, put_item, wide

__all__ = ["gather", "scatter_add", "take_along_dim"]


@op(cast=Cast.KEEP, moves=True)
def gather(input: Array, dim, index: Index, *, sparse_grad: CompatArg = False):
    """out[i][j] = input[index[i][j]][j] for dim 0, and so on: index [...] no longer than input on other axes -> [...].

    A 0-d tensor counts as one of length 1. Raises RangeError for an index outside the axis, ShapeError if index does
    not fit input.
    """
    in_range("gather", plain(index), length_of(input, dim))
    return _read_at(input, plain(index), dim), Saved(index=index, shape=input.shape)


def places(index: Any, dim: int) -> tuple[Any, ...]:
    """Where the elements that `index` names along `dim` lie: one index array per axis."""
    shape, at = index.shape, dim % index.ndim
    grid = [np.arange(n, like=index).reshape((-1,) + (1,) * (len(shape) - 1 - i)) for i, n in enumerate(shape)]
    return (*grid[:at], index, *grid[at + 1 :])


def _check_along(name: str) -> Callable[..., None]:
    def check(input: Any, dim: int, index: Any, *rest: Any, **params: Any) -> None:
        at = axis(name, dim, input.ndim)
        need_integers(name, index)
        named, there = index.shape or (1,), input.shape or (1,)
        longer = any(n > m for i, (n, m) in enumerate(zip(named, there, strict=False)) if i != at)
        if len(named) != len(there) or longer:
            needs = f"an index of {input.ndim} axes, no longer than {tuple(input.shape)} outside dim {dim}"
            raise ShapeError(name, needs, f"{tuple(index.shape)}")
        size = getattr(rest[0], "shape", ()) if rest else ()
        if size and (len(size) != len(named) or any(n > m for n, m in zip(named, size, strict=True))):
            raise ShapeError(name, f"src that covers index's shape {tuple(index.shape)}", f"{tuple(size)}")

    return check


def _row(x: Any) -> Any:
    return x if getattr(x, "ndim", 1) else x.reshape(1)


def _read_at(x: Any, index: Any, dim: int) -> Any:
    # What `index` names along `dim` of x, in the shape of index.
    found = apply(pick_item, _row(x), places(_row(index), dim))
    return found if index.ndim else found.reshape(())


def _put_at(values: Any, index: Any, dim: int, shape: tuple[int, ...]) -> Any:
    # Zeros of `shape` with values added where `index` names places along `dim`.
    found = apply(put_item, _row(values), places(_row(index), dim), shape or (1,))
    return found if shape else found.reshape(())


def _part(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple([slice(0, n) for n in shape])


def _covered(src: Any, shape: tuple[int, ...]) -> Any:
    # The part of `src` that is read where it is larger than the index.
    return src if getattr(src, "shape", ()) in ((), shape) else src[_part(shape or (1,))]


def _read(dy: Any, index: Any, dim: int, shape: tuple[int, ...]) -> Any:
    # The gradient of `src` of `shape`: what it was written to, 0 for the part that was not read.
    found = _row(_read_at(dy, index, dim))
    return found if shape in ((), found.shape) else apply(put_item, found, _part(found.shape), shape)


gather.check(_check_along("gather"))


@gather.backward
def gather_backward(dy, saved, needs, dim):
    return _put_at(wide(dy), plain(saved.index), dim, saved.shape), None


@op(cast=Cast.WIDEST, mixes=False)
def scatter_add(input: Array, dim, index: Index, src: Array):
    """input with src added at the places that `gather` with this index would read; sums in float32, rounded once."""
    in_range("scatter_add", plain(index), length_of(input, dim))
    part = _covered(src, index.shape)
    return input + _put_at(part, plain(index), dim, input.shape), Saved(index=index, size=src.shape)


scatter_add.check(_check_along("scatter_add"))


@scatter_add.backward
def scatter_add_backward(dy, saved, needs, dim):
    return dy, None, _read(dy, plain(saved.index), dim, saved.size) if needs[2] else None


@op(cast=Cast.WIDEST, moves=True, mixes=False)
def scatter_(input: Array, dim, index: Index, src: Array):
    """`scatter`: src is a tensor that covers index, or a number; where several meet, the last stays."""
    in_range("scatter", plain(index), length_of(input, dim))
    out = input.copy()
    assign(_row(out), places(_row(plain(index)), dim), _covered(src, index.shape))
    return out, Saved(index=index, size=getattr(src, "shape", ()))


scatter_.check(_check_along("scatter"))


@scatter_.backward
def scatter_backward(dy, saved, needs, dim):
    index, free = plain(saved.index), np.ones_like(plain(dy), np.bool_)
    _row(free)[places(_row(index), dim)] = False
    return kept(dy, free), None, _read(dy, index, dim, saved.size) if needs[2] else None


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The elements that `indices` name along `dim`, the other axes broadcast; without dim, of the flat input.

    A negative index counts from the end. Raises DTypeError for indices that are no integers, RangeError for one outside
    the axis.
    """
    need_integers("take_along_dim", indices.array)
    if dim is None:
        return getitem(flatten(input), flatten(indices))
    at = axis("take_along_dim", dim, input.ndim)
    if input.ndim != indices.ndim:
        raise ShapeError("take_along_dim", f"indices of {input.ndim} axes", f"shape {tuple(indices.shape)}")
    others = [tuple([1 if i == at else n for i, n in enumerate(t.shape)]) for t in (input, indices)]
    shape = broadcast_of("take_along_dim", *others)
    if not shape:
        return gather(input, at, indices)
    length = input.shape[at]
    in_range("take_along_dim", indices.array, length, -length)
    indices = Tensor(np.where(indices.array < 0, indices.array + length, indices.array))
    lengths = [(*shape[:at], t.shape[at], *shape[at + 1 :]) for t in (input, indices)]
    return gather(broadcast_to(input, lengths[0]), at, broadcast_to(indices, lengths[1]))
