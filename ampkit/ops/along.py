"""Single elements along an axis: gathered from, and scattered to, the places that an index tensor names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.errors import ShapeError
from ..core.op import Array, Index, Saved, op
from ..core.policy import Cast
from ..core.replay import apply, plain
from ..core.tensor import Tensor
from ..core.words import Word
from .assign import assign
from .axes import axis
from .index import broadcast_of, getitem, in_range, length_of, need_integers, pick_item, put_item, wide
from .masks import kept
from .shape import broadcast_to, flatten

__all__ = ["gather", "scatter_add", "take_along_dim"]


@op(cast=Cast.KEEP, moves=True)
def gather(input: Array, dim, index: Index, *, sparse_grad: Word = False):
    """out[i][j] = input[index[i][j]][j] for dim 0, and so on: index [...] no longer than input on other axes -> [...].

    Raises RangeError for an index outside the axis, ShapeError if index does not fit input.
    """
    in_range("gather", plain(index), length_of(input, dim))
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
        need_integers(name, index)
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
    in_range("scatter_add", plain(index), length_of(input, dim))
    part = _covered(src, index.shape)
    return input + apply(put_item, part, places(plain(index), dim), input.shape), Saved(index=index, size=src.shape)


scatter_add.check(_check_along("scatter_add"))


@scatter_add.backward
def scatter_add_backward(dy, saved, needs, dim):
    return dy, None, _read(dy, places(plain(saved.index), dim), saved.size) if needs[2] else None


@op(cast=Cast.WIDEST, moves=True)
def scatter_(input: Array, dim, index: Index, src: Array):
    """`scatter`: src is a tensor that covers index, or a number; where several meet, the last stays."""
    in_range("scatter", plain(index), length_of(input, dim))
    out = input.copy()
    assign(out, places(plain(index), dim), _covered(src, index.shape))
    return out, Saved(index=index, size=getattr(src, "shape", ()))


scatter_.check(_check_along("scatter"))


@scatter_.backward
def scatter_backward(dy, saved, needs, dim):
    where = places(plain(saved.index), dim)
    free = np.ones_like(plain(dy), np.bool_)
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
    shape = broadcast_of("take_along_dim", *others)
    if not shape:
        return gather(input, at, indices)  # type: ignore[no-any-return]
    lengths = [(*shape[:at], t.shape[at], *shape[at + 1 :]) for t in (input, indices)]
    return gather(broadcast_to(input, lengths[0]), at, broadcast_to(indices, lengths[1]))  # type: ignore[no-any-return]
