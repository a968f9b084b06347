"""Elements along an axis by an index tensor: gather, scatter_add, take_along_dim, masked_scatter, take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.base.array_kinds import on_device
from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.casts import to_accumulator
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast, is_autocast_enabled
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import axis_length, broadcast_shape, check_index_range, check_integer_index, normalize_axis
from ..pointwise.selection import select_or_zero, where
from ..shape.view import broadcast_shapes, broadcast_to, flatten
from .deterministic_scatter import assign_last_wins
from .getitem import advanced_getitem, getitem, put_into_zeros

__all__ = ["gather", "masked_scatter", "scatter_add", "take", "take_along_dim"]


@op(cast=Cast.KEEP, moves=True, opaque=True)
def gather(input: Array, dim, index: Index, *, sparse_grad: CompatArg = False):
    """out[i][j] = input[index[i][j]][j] for dim 0, and so on: index [...] no longer than input on other axes -> [...].

    A 0-d tensor counts as one of length 1. Raises RangeError for an index outside the axis, ShapeError if index does
    not fit input.
    """
    check_index_range("gather", plain(index), axis_length(input, dim))
    return _take_along(input, plain(index), dim), Saved(index=index, shape=input.shape)


def along_axis_index(index: Any, dim: int) -> tuple[Any, ...]:
    """Return one index array per axis that select the elements of `index` along `dim`, as in `take_along_axis`."""
    shape, at = index.shape, dim % index.ndim
    grid = [np.arange(n, like=index).reshape((-1,) + (1,) * (len(shape) - 1 - i)) for i, n in enumerate(shape)]
    return (*grid[:at], index, *grid[at + 1 :])


def check_along_axis(name: str) -> Callable[..., None]:
    def check(input: Any, dim: int, index: Any, *rest: Any, **params: Any) -> None:
        at = normalize_axis(name, dim, input.ndim)
        check_integer_index(name, index)
        named, there = index.shape or (1,), input.shape or (1,)
        longer = any(n > m for i, (n, m) in enumerate(zip(named, there, strict=False)) if i != at)
        if len(named) != len(there) or longer:
            needs = f"an index of {input.ndim} axes, no longer than {tuple(input.shape)} outside dim {dim}"
            raise ShapeError(name, needs, f"{tuple(index.shape)}")
        size = getattr(rest[0], "shape", ()) if rest else ()
        if size and (len(size) != len(named) or any(n > m for n, m in zip(named, size, strict=True))):
            raise ShapeError(name, f"src that covers index's shape {tuple(index.shape)}", f"{tuple(size)}")

    return check


def _at_least_1d(x: Any) -> Any:
    return x if getattr(x, "ndim", 1) else x.reshape(1)


def _take_along(x: Any, index: Any, dim: int) -> Any:
    # The elements of x at `index` along `dim`, in the shape of index.
    found = apply(advanced_getitem, _at_least_1d(x), along_axis_index(_at_least_1d(index), dim))
    return found if index.ndim else found.reshape(())


def _add_along(values: Any, index: Any, dim: int, shape: tuple[int, ...]) -> Any:
    # Zeros of `shape` with values added at `index` along `dim`.
    found = apply(put_into_zeros, _at_least_1d(values), along_axis_index(_at_least_1d(index), dim), shape or (1,))
    return found if shape else found.reshape(())


def leading_slices(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple([slice(0, n) for n in shape])


def trim_to_index(src: Any, shape: tuple[int, ...]) -> Any:
    # The leading part of `src` with the index's shape: src may be larger.
    return src if getattr(src, "shape", ()) in ((), shape) else src[leading_slices(shape or (1,))]


def _src_gradient(dy: Any, index: Any, dim: int, shape: tuple[int, ...]) -> Any:
    # The gradient of `src` of `shape`: dy at the written elements, 0 where src was not read.
    found = _at_least_1d(_take_along(dy, index, dim))
    return found if shape in ((), found.shape) else apply(put_into_zeros, found, leading_slices(found.shape), shape)


gather.check(check_along_axis("gather"))


@gather.backward
def gather_backward(dy, saved, needs, dim):
    return _add_along(to_accumulator(dy), plain(saved.index), dim, saved.shape), None


@op(cast=Cast.WIDEST, mixes=False)
def scatter_add(input: Array, dim, index: Index, src: Array):
    """input with src added to the elements that `gather` with this index reads; summed in float32, rounded once."""
    check_index_range("scatter_add", plain(index), axis_length(input, dim))
    part = trim_to_index(src, index.shape)
    return input + _add_along(part, plain(index), dim, input.shape), Saved(index=index, size=src.shape)


scatter_add.check(check_along_axis("scatter_add"))


@scatter_add.backward
def scatter_add_backward(dy, saved, needs, dim):
    return dy, None, _src_gradient(dy, plain(saved.index), dim, saved.size) if needs[2] else None


@op(cast=Cast.WIDEST, moves=True, mixes=False)
def scatter_(input: Array, dim, index: Index, src: Array):
    """`scatter` of a tensor at least as large as index, or of a number; of repeated indices the last wins."""
    check_index_range("scatter", plain(index), axis_length(input, dim))
    out = input.copy()
    assign_last_wins(
        _at_least_1d(out), along_axis_index(_at_least_1d(plain(index)), dim), trim_to_index(src, index.shape)
    )
    return out, Saved(index=index, size=getattr(src, "shape", ()))


scatter_.check(check_along_axis("scatter"))


@scatter_.backward
def scatter_backward(dy, saved, needs, dim):
    index, free = plain(saved.index), np.ones_like(on_device(plain(dy)), np.bool_, shape=dy.shape)
    _at_least_1d(free)[along_axis_index(_at_least_1d(index), dim)] = False
    return select_or_zero(dy, free), None, _src_gradient(dy, index, dim, saved.size) if needs[2] else None


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The elements at `indices` along `dim`, the other axes broadcast; without dim, of the flattened input.

    A negative index counts from the end. Raises DTypeError for indices that are not integers, RangeError for one out of
    range.
    """
    check_integer_index("take_along_dim", indices.array)
    if dim is None:
        return getitem(flatten(input), flatten(indices))
    at = normalize_axis("take_along_dim", dim, input.ndim)
    if input.ndim != indices.ndim:
        raise ShapeError("take_along_dim", f"indices of {input.ndim} axes", f"shape {tuple(indices.shape)}")
    others = [tuple([1 if i == at else n for i, n in enumerate(t.shape)]) for t in (input, indices)]
    shape = broadcast_shape("take_along_dim", *others)
    if not shape:
        return gather(input, at, indices)
    length = input.shape[at]
    check_index_range("take_along_dim", indices.array, length, -length)
    indices = Tensor(np.where(indices.array < 0, indices.array + length, indices.array))
    lengths = [(*shape[:at], t.shape[at], *shape[at + 1 :]) for t in (input, indices)]
    return gather(broadcast_to(input, lengths[0]), at, broadcast_to(indices, lengths[1]))


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """input with consecutive elements of source where mask (bool, broadcast to input) is true.

    In a region the result has the widest dtype of the two. Raises ShapeError if source has too few elements, DTypeError
    for a source of another dtype elsewhere.
    """
    if mask.array.dtype != np.bool_:
        raise DTypeError("masked_scatter", "a mask of dtype bool", mask.dtype.name, "compare it: mask != 0")
    chosen = np.broadcast_to(mask.array, broadcast_shapes(mask.shape, input.shape))
    if source.array.dtype != input.array.dtype and not is_autocast_enabled(input.device.type):
        cure = f"cast it: source.to(ampkit.{input.dtype.name})"
        raise DTypeError("masked_scatter", f"a source of {input.dtype.name}", source.dtype.name, cure)
    count = np.cumsum(chosen.reshape(-1)).reshape(chosen.shape)
    if chosen.size and count.reshape(-1)[-1] > source.numel():
        raise ShapeError("masked_scatter", f"a source of {count.reshape(-1)[-1]} elements", f"{source.numel()}")
    if not source.numel():
        return input
    source_index = Tensor(np.maximum(count - 1, 0))
    return where(Tensor(chosen), getitem(flatten(source), source_index), input)


def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements of input at positions in row-major order: index [...] -> [...].

    Raises RangeError for an index outside input, DTypeError for one that is not integer.
    """
    check_integer_index("take", index.array)
    return getitem(flatten(input), index)
