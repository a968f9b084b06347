"""Sorting and extremes with their indices: argmax, max, sort, topk."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import bfloat16, float32
from ampkit.base.errors import RangeError, ShapeError
from ampkit.core.autograd.traced_array import apply
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import normalize_axis
from ..indexing.gather_scatter import along_axis_index
from ..indexing.getitem import put_into_zeros
from ..named import named
from ..pointwise.selection import maximum, minimum
from .reductions import amax, amin

__all__ = ["argmax", "argmin", "argsort", "max", "min", "msort", "sort", "topk"]


class ValuesIndices(NamedTuple):
    """Values, and their int64 indices along the axis."""

    values: Tensor
    indices: Tensor


def _check_nonempty(name: str) -> Any:
    def check(input: Any, dim: Any = None, *rest: Any, **params: Any) -> None:
        at = None if dim is None and name.startswith("arg") else normalize_axis(name.rstrip("_"), dim, input.ndim)
        length = input.size if at is None or not input.ndim else input.shape[at]
        if not length:
            raise ShapeError(name, "at least one element", f"shape {tuple(input.shape)}")

    return check


def _arg_extreme(name: str, find: Any, which: str) -> Op:
    doc = f"""The index of the {which} value along `dim` (None: of the flattened input), of ties the first. int64.

    NaN is {which}.
    """

    @op(cast=Cast.KEEP)
    @named(name, doc)
    def made(input: Array, dim=None, keepdim=False):
        return find(input, dim if input.ndim else None, keepdims=keepdim)

    made.check(_check_nonempty(name))
    return made


argmax = _arg_extreme("argmax", np.argmax, "largest")
argmin = _arg_extreme("argmin", np.argmin, "smallest")


def max(input: Tensor, dim: Any = None, keepdim: bool = False, other: Any = None) -> Any:
    """The largest value; along `dim` (values, indices), of ties the first; with another tensor, `maximum`."""
    return _extreme(input, dim if other is None else other, keepdim, amax, max_, maximum)


def min(input: Tensor, dim: Any = None, keepdim: bool = False, other: Any = None) -> Any:
    """The smallest value; along `dim` (values, indices), of ties the first; with another tensor, `minimum`."""
    return _extreme(input, dim if other is None else other, keepdim, amin, min_, minimum)


def _extreme(input: Tensor, dim: Any, keepdim: bool, over_all: Any, along: Any, of_two: Any) -> Any:
    if dim is None:
        return over_all(input)
    return of_two(input, dim) if isinstance(dim, Tensor) else ValuesIndices(*along(input, dim, keepdim))


def _extreme_along(name: str, find: Any, which: str) -> Op:
    @op(cast=Cast.KEEP)
    @named(name, f"(values, indices) of the {which} value along `dim`.")
    def made(input: Array, dim, keepdim=False):
        return values_at(input, find(input, dim if input.ndim else None, keepdims=True), dim, keepdim)

    made.check(_check_nonempty(made.name))
    made.backward(values_at_backward)
    return made


def values_at(input: Any, at: Any, dim: int, keepdim: bool) -> Any:
    if not input.ndim:
        return (input, at), Saved(at=at, shape=())
    values, drop = np.take_along_axis(input, at, dim), None if keepdim else dim
    outs = (values, at) if drop is None else (values.squeeze(drop), at.squeeze(drop))
    return outs, Saved(at=at, shape=input.shape)


def values_at_backward(dy, saved, needs, dim, keepdim):
    dy = dy[0]
    if not saved.shape:
        return dy
    after = len(saved.shape) - 1 - dim % len(saved.shape)
    hit = np.arange(saved.shape[dim], like=saved.at).reshape(-1, *(1,) * after)
    return (dy if keepdim else np.expand_dims(dy, dim)) * (hit == saved.at).astype(dy.dtype)


max_ = _extreme_along("max_", np.argmax, "largest")
min_ = _extreme_along("min_", np.argmin, "smallest")


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesIndices:
    """(values, indices) in ascending (or descending) order along `dim`, stable. NaN is largest."""
    return ValuesIndices(*sort_(input, dim, descending))


@op(cast=Cast.KEEP)
def sort_(input: Array, dim=-1, descending=False):
    """(values, indices) of `input` in order along `dim`, stable."""
    if not input.ndim:
        return (input, np.zeros_like(input, dtype=np.int64)), Saved(at=None)
    at = stable_order(input, dim, descending)
    return (np.take_along_axis(input, at, dim), at), Saved(at=at)


sort_.check(lambda input, dim, descending: normalize_axis("sort", dim, input.ndim))


@sort_.backward
def sort_backward(dy, saved, needs, dim, descending):
    return dy[0] if saved.at is None else np.take_along_axis(dy[0], np.argsort(saved.at, dim), dim)


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort `input` in ascending (or descending) order along `dim`, stable. int64."""
    return sort_(input.detach(), dim, descending)[1]


def stable_order(x: Any, dim: int, descending: bool) -> Any:
    x = x if x.dtype != bfloat16 else x.astype(float32)  # CuPy cannot sort bfloat16
    if not descending:
        return np.argsort(x, dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(np.argsort(np.flip(x, dim), dim, kind="stable"), dim)


def topk(input: Tensor, k: int, dim: int | None = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """(values, indices) of the k largest (or smallest) along `dim`, in order.

    Raises RangeError for a k beyond the length of the axis. NaN counts as the largest.
    """
    return ValuesIndices(*topk_(input, k, -1 if dim is None else dim, largest))


@op(cast=Cast.KEEP)
def topk_(input: Array, k, dim=-1, largest=True):
    """(values, indices) of the first k of `input` in order along `dim`."""
    if not input.ndim:
        at = np.zeros_like(input, dtype=np.int64)
        return (input, at), Saved(at=at, shape=())
    at = np.take(stable_order(input, dim, largest), np.arange(k, like=input), dim)
    return (np.take_along_axis(input, at, dim), at), Saved(at=at, shape=input.shape)


@topk_.check
def topk_check(input, k, dim, largest):
    at = normalize_axis("topk", dim, input.ndim)
    length = input.shape[at] if input.ndim else 1
    if not 0 <= k <= length:
        raise RangeError("topk", f"k from 0 to {length}, the length of dim {dim}", f"{k}")


@topk_.backward
def topk_backward(dy, saved, needs, k, dim, largest):
    return apply(put_into_zeros, dy[0], along_axis_index(saved.at, dim), saved.shape) if saved.shape else dy[0]


def msort(input: Tensor) -> Tensor:
    """The values in ascending order along the first axis."""
    return sort(input, 0).values
