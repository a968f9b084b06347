"""scatter, scatter_reduce and index_reduce."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import axis_length, check_index_range, normalize_axis
from ..creation.constants import full_like
from ..shape.view import reshape
from .deterministic_scatter import add_at, scan_by_key, segment_reduce
from .gather_scatter import along_axis_index, check_along_axis, leading_slices, scatter_, scatter_add, trim_to_index
from .getitem import advanced_getitem, put_into_zeros

__all__ = ["index_reduce", "scatter", "scatter_reduce"]


_UFUNCS = {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}
_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """input with elements of src reduced into those that `gather` with this index reads.

    reduce: "sum", "prod", "mean", "amax" or "amin"; include_self=False leaves out input's own value where src writes.
    Equal extremes share the gradient evenly.
    Raises as `gather` does, ArgumentError for another reduce.
    """
    if input.ndim and index.ndim:
        return scatter_reduce_(input, dim, index, src, reduce, include_self=include_self)
    row = [t if t.ndim else reshape(t, 1) for t in (input, index, src)]
    return reshape(scatter_reduce(row[0], dim, row[1], row[2], reduce, include_self=include_self), input.shape)


@op(cast=Cast.WIDEST, mixes=False)
def scatter_reduce_(input: Array, dim, index: Index, src: Array, reduce, *, include_self=True):
    """`scatter_reduce` of tensors with at least one axis."""
    at, part = along_axis_index(plain(index), dim), trim_to_index(src, index.shape)
    check_index_range("scatter_reduce", plain(index), axis_length(input, dim))
    count = _count(part, at, input.shape)
    if reduce in _UFUNCS:
        found = segment_reduce(_UFUNCS[reduce], part, at, input.shape, 0)
        found = _UFUNCS[reduce](input, found) if include_self else found
    else:
        found = add_at(part, at, input.shape)
        found = found + input if include_self else found
    if reduce == "mean":
        often = np.maximum(count + int(include_self), 1)
        found = found / often if input.dtype.kind not in "biu" else (found // often).astype(input.dtype)
    out = np.where(count > 0, found, input)
    return out, Saved(input=input, index=index, src=src, out=out)


def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """input with slice i of source reduced into slice index[i] of `dim`; see `scatter_reduce`.

    reduce: "prod", "mean", "amax" or "amin". Raises ShapeError for a source that does not fit.
    """
    if not input.ndim:
        row = [reshape(t, -1) for t in (input, index, source)]
        return reshape(index_reduce(row[0], dim, row[1], row[2], reduce, include_self=include_self), ())
    at = normalize_axis("index_reduce", dim, input.ndim)
    wanted = (*input.shape[:at], index.numel(), *input.shape[at + 1 :])
    if index.ndim > 1 or tuple(source.shape) != wanted:
        needs = f"index [n] and source {[*input.shape[:at], 'n', *input.shape[at + 1 :]]}"
        raise ShapeError("index_reduce", needs.replace("'", ""), f"{list(index.shape)} and {list(source.shape)}")
    if reduce == "sum":
        raise ArgumentError("index_reduce", "reduce 'prod', 'mean', 'amax', 'amin'", "'sum'", "use index_add")
    line = reshape(index, [-1 if i == at else 1 for i in range(input.ndim)])
    full_index = Tensor(np.broadcast_to(line.array, source.shape))
    return scatter_reduce(input, dim, full_index, source, reduce, include_self=include_self)


def _count(part: Any, at: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    return add_at(np.ones_like(plain(part)), at, shape)


@scatter_reduce_.check
def scatter_reduce_check(input, dim, index, src, reduce, *, include_self):
    if reduce not in _REDUCTIONS:
        raise ArgumentError("scatter_reduce", f"reduce {', '.join(map(repr, _REDUCTIONS))}", repr(reduce))
    check_along_axis("scatter_reduce")(input, dim, index, src)
    if not src.shape and index.size > 1:
        raise ShapeError("scatter_reduce", f"src that covers index's shape {tuple(index.shape)}", "()")


@scatter_reduce_.backward
def scatter_reduce_backward(dy, saved, needs, dim, reduce, include_self):
    x, src, at = saved.input, saved.src, along_axis_index(plain(saved.index), dim)
    part = trim_to_index(src, saved.index.shape)
    grads = _local_grads(reduce, x, part, at, saved.out, include_self)
    alone = _count(part, at, x.shape) == 0
    dx = np.where(alone, dy, dy * grads[0] if include_self else 0) if needs[0] is not None else None
    if needs[2] is None:
        return dx, None, None
    ds = apply(advanced_getitem, dy, at) * grads[1]
    return dx, None, ds if ds.shape == src.shape else apply(put_into_zeros, ds, leading_slices(ds.shape), src.shape)


def _local_grads(reduce: str, x: Any, part: Any, at: tuple[Any, ...], out: Any, include_self: bool) -> tuple[Any, Any]:
    """The derivatives of the result by input [like x] and by src [like part], per element."""
    own, one = int(include_self), np.ones_like(plain(part))
    if reduce == "prod":
        return _leave_one_out_products(x, part, at, include_self)
    if reduce in ("amax", "amin"):
        hit = (plain(part) == plain(out)[at]).astype(one.dtype)
        stays = (plain(x) == plain(out)).astype(one.dtype)
        share = 1 / np.maximum(add_at(hit, at, x.shape) + own * stays, 1)
        return stays * share, hit * share[at]
    share = 1 / np.maximum(_count(part, at, x.shape) + own, 1) if reduce == "mean" else np.ones_like(plain(x))
    return share, share[at]


def _leave_one_out_products(x: Any, part: Any, at: tuple[Any, ...], include_self: bool) -> tuple[Any, Any]:
    # Products of the factors before and after: without division, so exact, also their derivatives, where a factor is 0.
    cells = np.arange(x.size, like=plain(x))
    keys = cells.reshape(x.shape)[at].reshape(-1)
    if include_self:
        keys, values = np.concatenate([cells, keys]), np.concatenate([x.reshape(-1), part.reshape(-1)])
    else:
        values = part.reshape(-1)
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    both = _exclusive_products(values, keys) * np.flip(_exclusive_products(np.flip(values, 0), np.flip(keys, 0)), 0)
    found, own = both[np.argsort(order)], x.size if include_self else 0
    mine = found[:own].reshape(x.shape) if include_self else np.zeros_like(plain(x))
    return mine, found[own:].reshape(part.shape)


def _exclusive_products(values: Any, keys: Any) -> Any:
    # The exclusive product of the values under equal keys, which are sorted.
    if not keys.size:
        return values
    one = np.ones_like(plain(values)[:1])
    before = np.concatenate([one, np.where(keys[1:] == keys[:-1], values[:-1], 1)])
    return scan_by_key(np.multiply, before, keys)


def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | float | None = None,
    value: float | None = None,
    *,
    reduce: str | None = None,
) -> Tensor:
    """input with src (a tensor, or a number, also as `value`) written to the elements that `gather` with index reads.

    Of repeated indices the last wins; reduce="add" adds them up, as `scatter_add`, and "multiply" multiplies.
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
