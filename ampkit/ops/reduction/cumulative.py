"""Cumulative sums, products and extremes along an axis."""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np

from ampkit.base.dtypes import accumulator, float64, int64, is_float
from ampkit.core.autograd.traced_array import TracedArray, apply, plain
from ampkit.core.casts import cast, to_accumulator
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import normalize_axis
from ..indexing.gather_scatter import along_axis_index
from ..indexing.getitem import put_into_zeros
from ..named import named
from .reductions import exclusive_cumprod
from .sorting import ValuesIndices

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"]


@op(cast=Cast.FP32)
def cumsum(input: Array, dim, dtype=None):
    """The cumulative sum along `dim`. In float32; integers in int64, or in `dtype`."""
    return (_blocked_cumsum(input, dim % input.ndim) if input.ndim else input.astype(accumulator(input.dtype))), Saved()


_UNBLOCKED = 4096  # longest row summed in one run: with random signs its error is about ten roundings


def _blocked_cumsum(x: Any, axis: int) -> Any:
    # Long rows: cumulative sums within blocks, plus the total of the blocks before.
    n, wide = x.shape[axis], accumulator(x.dtype)
    if n <= _UNBLOCKED or isinstance(x, TracedArray) or wide.kind == "i":
        return np.cumsum(x, axis, wide)
    block = isqrt(n)
    whole = n - n % block
    lead: Any = (slice(None),) * axis
    blocks = *x.shape[:axis], whole // block, block, *x.shape[axis + 1 :]
    parts = np.cumsum(x[(*lead, slice(whole))].reshape(blocks), axis + 1, wide)
    ends = _blocked_cumsum(parts[(*lead, slice(None), -1)], axis)
    parts[(*lead, slice(1, None))] += np.expand_dims(ends[(*lead, slice(-1))], axis + 1)
    parts = parts.reshape(*x.shape[:axis], whole, *x.shape[axis + 1 :])
    if whole == n:
        return parts
    rest = np.cumsum(x[(*lead, slice(whole, n))], axis, wide) + ends[(*lead, slice(-1, None))]
    return np.concatenate([parts, rest], axis)


@cumsum.backward
def cumsum_backward(dy, saved, needs, dim, dtype):
    return np.flip(_blocked_cumsum(np.flip(dy, dim), dim % dy.ndim), dim) if dy.ndim else dy


@op(cast=Cast.FP32)
def cumprod(input: Array, dim, dtype=None):
    """The cumulative product along `dim`. In float64, rounded once; integers in int64, or in `dtype`.

    The gradient is exact also with zeros.
    """
    wide = float64 if is_float(input.dtype) else int64  # in float32, factors would over- and underflow on the way
    out = np.cumprod(input, dim if input.ndim else None, wide)
    return out.reshape(input.shape).astype(input.dtype if wide == float64 else wide), Saved(input=input)


@cumprod.backward
def cumprod_backward(dy, saved, needs, dim, dtype):
    x = saved.input
    if not x.size or not x.ndim:
        return dy
    given, x, dy = dy.dtype, *[np.moveaxis(cast(each, float64), dim, 0) for each in (x, dy)]
    tail = [dy[-1]]  # tail_i = dy_i + x_{i+1} tail_{i+1}, from the last output back
    for i in range(len(x) - 2, -1, -1):
        tail.append(dy[i] + x[i + 1] * tail[-1])
    return cast(np.moveaxis(exclusive_cumprod(x, 0) * np.stack(tail[::-1]), 0, dim), given)


@op(cast=Cast.KEEP, integers="float")
def logcumsumexp(input: Array, dim):
    """The logarithm of the cumulative sum of exp(input) along `dim`, without overflow."""
    if not input.ndim:
        return input.copy(), Saved(input=input, sums=input)
    out, at, n, step = input, dim % input.ndim, input.shape[dim], 1
    while step < n:  # inclusive scan: each element takes in the sum that ends `step` before it
        late, early, head = _scan_slices(at, n, step)
        out = np.concatenate([out[head], np.logaddexp(out[late], out[early])], at)
        step *= 2
    saved = Saved(input=input, sums=out)  # unrounded: backward exponentiates their differences
    return out.copy() if out is input else out, saved


def _scan_slices(axis: int, n: int, step: int) -> Any:
    # Along `axis`: the elements from `step` on, those `step` before them, and the first `step`.
    parts = slice(step, n), slice(0, n - step), slice(step)
    return [(slice(None),) * axis + (part,) for part in parts]


@logcumsumexp.backward
def logcumsumexp_backward(dy, saved, needs, dim):
    if not dy.ndim or not dy.size:
        return dy
    x, out, dy = (np.moveaxis(a, dim, 0) for a in (saved.input, saved.sums, dy))
    tail = [dy[-1]]  # tail_i = dy_i + tail_{i+1} exp(out_i - out_{i+1}), whose exponent is never above 0
    for i in range(len(x) - 2, -1, -1):
        tail.append(dy[i] + tail[-1] * _exp_difference(out[i], out[i + 1]))
    return np.moveaxis(np.stack(tail[::-1]) * _exp_difference(x, out), 0, dim)


def _exp_difference(part: Any, whole: Any) -> Any:
    # exp(part - whole), 0 where part is -inf.
    empty = plain(part) == -np.inf
    return np.where(empty, 0, np.exp(np.where(empty, 0, part) - np.where(empty, 0, whole)))


logcumsumexp.check(lambda input, dim: normalize_axis("logcumsumexp", dim, input.ndim))

for _op in (cumsum, cumprod):
    _op.check(lambda input, dim, dtype, name=_op.name: normalize_axis(name, dim, input.ndim))


def cummax(input: Tensor, dim: int) -> ValuesIndices:
    """(values, indices): the cumulative maximum along `dim`, of ties the last. NaN propagates."""
    return ValuesIndices(*cummax_(input, dim))


def cummin(input: Tensor, dim: int) -> ValuesIndices:
    """(values, indices): the cumulative minimum along `dim`, of ties the last. NaN propagates."""
    return ValuesIndices(*cummin_(input, dim))


def _cumulative_extreme(name: str, wins: Any) -> Op:
    @op(cast=Cast.KEEP)
    @named(name, f"`{name[:-1]}`.")
    def made(input: Array, dim):
        found = cumulative_extremum(wins, input, dim)
        return found, Saved(at=found[1], shape=input.shape)

    made.check(lambda input, dim: normalize_axis(name[:-1], dim, input.ndim))
    made.backward(_cumulative_extreme_backward)
    return made


def cumulative_extremum(wins: Any, values: Any, dim: int) -> tuple[Any, Any]:
    """The cumulative extreme along `dim` and its index, by a scan of log n steps: CuPy has no accumulate for it.

    wins: `np.greater_equal` or `np.less_equal`.
    """
    if not values.ndim:
        return values, np.zeros_like(values, np.int64)
    at, n, step = dim % values.ndim, values.shape[dim], 1
    line = np.arange(n, like=values).reshape((-1,) + (1,) * (values.ndim - 1 - at))
    indices = np.broadcast_to(line, values.shape).astype(np.int64)
    while step < n:
        late, early, head = _scan_slices(at, n, step)
        new, old = values[late], values[early]
        stays = (new != new) | ((old == old) & wins(new, old))
        values, indices = (
            np.concatenate([held[head], np.where(stays, held[late], held[early])], at) for held in (values, indices)
        )
        step *= 2
    return values, indices


def _cumulative_extreme_backward(dy, saved, needs, dim):
    if not saved.shape:
        return dy[0]
    return apply(put_into_zeros, to_accumulator(dy[0]), along_axis_index(saved.at, dim), saved.shape)


cummax_ = _cumulative_extreme("cummax_", np.greater_equal)
cummin_ = _cumulative_extreme("cummin_", np.less_equal)
