"""Scattering: values written to places of a tensor along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.tensor import Tensor

from ..creation.like import full_like
from ..pointwise.selection import masked_fill, where
from ..shape.axes import axis
from ..shape.stacks import broadcast_shapes
from ..shape.view import broadcast_to, flatten, reshape
from .gather import scatter_, scatter_add
from .index_add import scatter_reduce
from .subscript import getitem, need_integers

__all__ = ["index_copy", "index_fill", "masked_scatter", "scatter", "take"]


def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | float | None = None,
    value: float | None = None,
    *,
    reduce: str | None = None,
) -> Tensor:
    """input with src (a tensor of index's shape, or a number, also as `value`) written where `gather` would read.

    Where several are written to one place, the last stays; with reduce="add" they are added, as by `scatter_add`, with
    "multiply" multiplied.
    Raises as `gather` does, DTypeError for a src of another dtype, ArgumentError for another reduce and without src.
    """
    src = value if src is None else src
    if src is None or reduce not in (None, "add", "multiply"):
        needs = "src or value, and reduce None, 'add' or 'multiply'"
        raise ArgumentError("scatter", needs, f"{src}, reduce={reduce!r}")
    if not isinstance(src, (Tensor, int, float)):
        raise DTypeError("scatter", "a Tensor or a number as src or value", f"a {type(src).__name__}")
    if reduce is None:
        return scatter_(input, dim, index, src)
    src = src if isinstance(src, Tensor) else full_like(index, src, dtype=input.dtype)
    if reduce == "multiply":
        return scatter_reduce(input, dim, index, src, "prod")
    return scatter_add(input, dim, index, src)


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """input with the number `value` in the slices of `dim` that index [n] names.

    Raises RangeError for an index outside the axis, ShapeError for one of several axes.
    """
    if not input.ndim:
        return reshape(index_fill(reshape(input, 1), dim, index, value), ())
    at = axis("index_fill", dim, input.ndim)
    column = _column("index_fill", index, at, input.ndim)
    shape = tuple(index.numel() if i == at else n for i, n in enumerate(input.shape))
    mask = scatter_(full_like(input, 0, dtype=np.bool_), at, broadcast_to(column, shape), True)
    return masked_fill(input, mask, value)


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """input with slice i of source [.., n, ..] in the place of slice index[i] of `dim`; of equal ones the last stays.

    Raises ShapeError if source does not fit, RangeError for an index outside the axis.
    """
    if not input.ndim:
        return reshape(index_copy(reshape(input, 1), dim, index, reshape(source, -1)), ())
    at = axis("index_copy", dim, input.ndim)
    needed = (*input.shape[:at], index.numel(), *input.shape[at + 1 :])
    if tuple(source.shape) != needed:
        raise ShapeError("index_copy", f"source of shape {needed}", f"{tuple(source.shape)}")
    column = _column("index_copy", index, at, input.ndim)
    return scatter_(input, at, broadcast_to(column, needed), source)


def _column(where: str, index: Tensor, at: int, ndim: int) -> Tensor:
    # An index [n] as one along axis `at` of `ndim`.
    if index.ndim > 1:
        raise ShapeError(where, "an index of at most one axis", f"shape {tuple(index.shape)}")
    return reshape(index, *(-1 if i == at else 1 for i in range(ndim)))


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """input with the elements of source, one after the other, where mask (bool, broadcast to input) is true.

    Raises ShapeError if source has too few, DTypeError for one of another dtype.
    """
    if mask.dtype != np.bool_:
        raise DTypeError("masked_scatter", "a mask of dtype bool", mask.dtype.name, "compare it: mask != 0")
    chosen = np.broadcast_to(mask.array, broadcast_shapes(mask.shape, input.shape))
    if source.dtype != input.dtype:
        cure = f"cast it: source.to(ampkit.{input.dtype.name})"
        raise DTypeError("masked_scatter", f"a source of {input.dtype.name}", source.dtype.name, cure)
    count = np.cumsum(chosen.reshape(-1)).reshape(chosen.shape)
    if chosen.size and count.reshape(-1)[-1] > source.numel():
        raise ShapeError("masked_scatter", f"a source of {count.reshape(-1)[-1]} elements", f"{source.numel()}")
    if not source.numel():
        return input
    places = Tensor(np.maximum(count - 1, 0))
    return where(Tensor(chosen), getitem(flatten(source), places), input)


def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements of input at positions in row-major order: index [...] -> [...]. RangeError outside input.

    Raises DTypeError for an index that holds no integers.
    """
    need_integers("take", index.array)
    return getitem(flatten(input), index)
