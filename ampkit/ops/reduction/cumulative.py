"""Products over an axis, and running sums and products along one."""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np

from ampkit.base.dtypes import accumulator
from ampkit.core.autograd.traced_array import TracedArray, plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

from ..shape.axes import axis
from .reductions import over, spread

__all__ = ["cumprod", "cumsum", "logcumsumexp", "prod"]


@op(cast=Cast.FP32)
def prod(input: Array, dim=None, keepdim=False, *, dtype=None):
    """The product over one `dim`, or of all elements. In float32; integers in int64, or in the given `dtype`.

    Zeros are differentiated exactly. Raises RangeError for an axis that input does not have.
    """
    return np.prod(input, over(dim, input.ndim), accumulator(input.dtype), keepdims=keepdim), Saved(input=input)


@prod.check
def prod_check(input, dim, keepdim, dtype):
    if dim is not None:
        axis("prod", dim, input.ndim)


@prod.backward
def prod_backward(dy, saved, needs, dim, keepdim, dtype):
    x = saved.input
    flat = x.reshape(-1) if dim is None else x
    at = 0 if dim is None else axis("prod", dim, flat.ndim)
    if not x.ndim:
        return dy
    others = _before(flat, at) * np.flip(_before(np.flip(flat, at), at), at)
    return spread(dy, x.shape, dim, keepdim) * others.reshape(x.shape)


def _before(x: Any, axis: int) -> Any:
    # The product of the elements before each one: 1, a, ab, ...
    index = (slice(None),) * axis
    one = np.ones_like(plain(x)[(*index, slice(0, 1))])
    return np.concatenate([one, np.cumprod(x[(*index, slice(0, -1))], axis)], axis)


# running sums and products


@op(cast=Cast.FP32)
def cumsum(input: Array, dim, dtype=None):
    """The running sum along `dim`. In float32; integers in int64, or in the given `dtype`."""
    return (_running_sum(input, dim % input.ndim) if input.ndim else input.astype(accumulator(input.dtype))), Saved()


_ROW = 4096  # elements whose running sum is one: with random signs off by some ten roundings


def _running_sum(x: Any, axis: int) -> Any:
    # Of long rows, running sums within blocks, each raised by that of the blocks before it.
    n, wide = x.shape[axis], accumulator(x.dtype)
    if n <= _ROW or isinstance(x, TracedArray) or wide.kind == "i":
        return np.cumsum(x, axis, wide)
    block = isqrt(n)
    whole, lead = n - n % block, (slice(None),) * axis
    blocks = *x.shape[:axis], whole // block, block, *x.shape[axis + 1 :]
    parts = np.cumsum(x[(*lead, slice(whole))].reshape(blocks), axis + 1, wide)
    ends = _running_sum(parts[(*lead, slice(None), -1)], axis)
    parts[(*lead, slice(1, None))] += np.expand_dims(ends[(*lead, slice(-1))], axis + 1)
    parts = parts.reshape(*x.shape[:axis], whole, *x.shape[axis + 1 :])
    if whole == n:
        return parts
    rest = np.cumsum(x[(*lead, slice(whole, n))], axis, wide) + ends[(*lead, slice(-1, None))]
    return np.concatenate([parts, rest], axis)


@cumsum.backward
def cumsum_backward(dy, saved, needs, dim, dtype):
    return np.flip(_running_sum(np.flip(dy, dim), dim % dy.ndim), dim) if dy.ndim else dy


@op(cast=Cast.FP32)
def cumprod(input: Array, dim, dtype=None):
    """The running product along `dim`. In float32; integers in int64, or in the given `dtype`.

    Zeros are differentiated exactly.
    """
    return np.cumprod(input, dim if input.ndim else None, accumulator(input.dtype)).reshape(input.shape), Saved(
        input=input
    )


@cumprod.backward
def cumprod_backward(dy, saved, needs, dim, dtype):
    x = saved.input
    if not x.size or not x.ndim:
        return dy
    x, dy = np.moveaxis(x, dim, 0), np.moveaxis(dy, dim, 0)
    tail = [
        dy[-1]
    ]  # tail_i = dy_i + x_{i+1} tail_{i+1}: what output i and those after it pass on, less what came before
    for i in range(len(x) - 2, -1, -1):
        tail.append(dy[i] + x[i + 1] * tail[-1])
    return np.moveaxis(_before(x, 0) * np.stack(tail[::-1]), 0, dim)


@op(cast=Cast.KEEP, integers="float")
def logcumsumexp(input: Array, dim):
    """The logarithm of the running sum of exp(input) along `dim`, without overflow."""
    if not input.ndim:
        return input.copy(), Saved(input=input, sums=input)
    out, at, n, step = input, dim % input.ndim, input.shape[dim], 1
    while step < n:  # each element takes in the sum that ends `step` before it
        late, early, head = (
            (slice(None),) * at + (part,) for part in (slice(step, n), slice(0, n - step), slice(step))
        )
        out = np.concatenate([out[head], np.logaddexp(out[late], out[early])], at)
        step *= 2
    return out.copy() if out is input else out, Saved(input=input, sums=out)  # unrounded: an exponent is made of them


@logcumsumexp.backward
def logcumsumexp_backward(dy, saved, needs, dim):
    if not dy.ndim or not dy.size:
        return dy
    x, out, dy = (np.moveaxis(a, dim, 0) for a in (saved.input, saved.sums, dy))
    tail = [dy[-1]]  # tail_i = dy_i + tail_{i+1} exp(out_i - out_{i+1}), whose exponent is never above 0
    for i in range(len(x) - 2, -1, -1):
        tail.append(dy[i] + tail[-1] * _share(out[i], out[i + 1]))
    return np.moveaxis(np.stack(tail[::-1]) * _share(x, out), 0, dim)


def _share(part: Any, whole: Any) -> Any:
    # exp(part - whole), 0 for a part of exp(-inf).
    nothing = plain(part) == -np.inf
    return np.where(nothing, 0, np.exp(np.where(nothing, 0, part) - np.where(nothing, 0, whole)))


logcumsumexp.check(lambda input, dim: axis("logcumsumexp", dim, input.ndim))
for _op in (cumsum, cumprod):
    _op.check(lambda input, dim, dtype, name=_op.name: axis(name, dim, input.ndim))
