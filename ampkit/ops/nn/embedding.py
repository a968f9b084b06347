"""Embedding: rows of a table by index, one per index or reduced per bag of indices; the gradient sums by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import accumulator
from ampkit.base.errors import DTypeError, RangeError, ShapeError, UndefinedError, check_choice, switch
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.casts import to_accumulator
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_values
from ..indexing.search import unique
from ..pointwise.conversion import to
from ..pointwise.selection import clamp, where
from ..reduction.histogram import bincount
from ..reduction.norms import linalg_vector_norm
from ..shape.view import reshape

__all__ = ["embedding", "embedding_bag"]


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: CompatArg = False,
) -> Tensor:
    """The rows of `weight` at the indices `input`.

    input [...] integers from 0 to V - 1, weight [V, D] -> [..., D], in the dtype of weight. The gradient of a row is
    the sum over its uses, in float32 (float64 for float64), in a fixed order; row `padding_idx` gets none. max_norm
    scales the rows that are used, before they are read and in place, to at most that norm_type-norm.
    scale_grad_by_freq divides a row's gradient by the number of its uses.
    Raises ShapeError if weight is not a matrix, DTypeError if input is not of integers, RangeError for an index outside
    the table, with its position.
    """
    if max_norm is not None:
        renormalize(input, weight, max_norm, norm_type)
    if switch("embedding", "scale_grad_by_freq", scale_grad_by_freq):
        weight = _scaled_by_uses(input, weight)
    return embedding_(input, weight, padding_idx)


def _scaled_by_uses(input: Tensor, weight: Tensor) -> Tensor:
    # A view of `weight`, where the gradient of each row is divided by its uses.
    view = reshape(weight, weight.shape)
    if view.requires_grad:
        uses = clamp(bincount(reshape(input, (-1,)), minlength=weight.shape[0]), 1).unsqueeze(-1)
        view.register_hook(lambda gradient: gradient / uses)
    return view


def renormalize(input: Tensor, weight: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows of `weight` at the indices `input` in place, to norms of at most `max_norm`.

    Computed in float32 (float64 for float64) and rounded once; PyTorch rounds the norm of a 16-bit row, too.
    """
    with no_grad():
        check_indices(input.array, weight.shape[0])
        rows = unique(reshape(input, (-1,)))
        values = embedding_(rows, weight)
        wide = to(values, accumulator(values.array.dtype))
        norms = linalg_vector_norm(wide, norm_type, -1, keepdim=True)
        scale = where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)  # 1e-7 as in PyTorch
        weight[rows] = to(wide * scale, values.dtype)


@op(cast=Cast.KEEP, moves=True)
def embedding_(input: Index, weight: Array, padding_idx: int | None = None):
    """`embedding`, without a change of the table before."""
    check_indices(plain(input), len(weight))
    return np.take(weight, input, 0), Saved(input=input, rows=len(weight))


@embedding_.check
def embedding_check(input, weight, padding_idx):
    if weight.ndim != 2:
        raise ShapeError("embedding", "weight of shape [rows, width]", f"{tuple(weight.shape)}")
    if input.dtype.kind not in "iu":
        swapped = "the indices come first: embedding(input, weight)"
        cure = swapped if weight.dtype.kind in "iu" else "indices are integers: cast them with .long()"
        raise DTypeError("embedding", "integer indices", input.dtype.name, cure)
    rows = len(weight)
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise RangeError("embedding", f"padding_idx from {-rows} to {rows - 1}", f"{padding_idx}")


def check_indices(index: Any, rows: int) -> None:
    check_values("embedding", index, (index < 0) | (index >= rows), f"indices from 0 to {rows - 1} ({rows} rows)")


@embedding_.backward
def embedding_backward(dy, saved, needs, padding_idx):
    index = plain(saved.input)
    if padding_idx is not None:
        dy = np.where((index != padding_idx % saved.rows)[..., None], dy, 0)
    return None, apply(sum_rows, to_accumulator(dy), index, rows=saved.rows)


@op(cast=Cast.KEEP)
def sum_rows(input: Array, index: Index, rows):
    """Sum of the rows of `input` that share an index.

    input [..., D], index [...] integers from 0 to rows - 1 -> [rows, D]; summed in float32 (float64 for float64),
    pairwise and in a fixed order: the same bits every time.
    """
    width = input.shape[-1]
    values = input.reshape(-1, width) if width else input.reshape(index.size, 0)
    sums, indices = _segment_sums(values, plain(index).reshape(-1))
    out = np.zeros((rows, width), input.dtype, like=input)
    out[indices] = sums
    return out, Saved(index=index)


@sum_rows.backward
def sum_rows_backward(dy, saved, needs, rows):
    return apply(embedding_, plain(saved.index), dy)


def _segment_sums(values: Any, index: Any) -> tuple[Any, Any]:
    # Sorted by index, neighbours of equal index are added in pairs until each is there once: log2(most repeats) rounds.
    order = np.argsort(index, kind="stable")
    index = index[order]
    while (index[1:] == index[:-1]).any():
        steps = np.arange(len(index), like=index)
        first = np.concatenate((steps[:1] == 0, index[1:] != index[:-1]))
        rank = steps - np.flatnonzero(first)[np.cumsum(first) - 1]  # within its segment
        even = rank % 2 == 0
        odd = np.flatnonzero(~even)
        pairs = np.cumsum(even)[odd] - 1
        merged = values[order[even]]
        merged[pairs] += values[order[odd]]
        values, index, order = merged, index[even], np.arange(len(merged), like=index)
    return values[order], index


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: CompatArg = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of the rows of `weight` at each bag of indices; 0 for an empty bag.

    input [B, L]: a bag per row; or [n] with offsets [B], the start of each bag, from 0 on and never decreasing, and
    with include_last_offset [B + 1], the end of the last; weight [V, D]; per_sample_weights, like input, multiply the
    rows of a sum -> [B, D], in the dtype of weight. max_norm, norm_type and scale_grad_by_freq are those of
    `embedding`. Indices equal to `padding_idx` are left out. Summed in float32 (float64 for float64), in a fixed order.
    The gradient of a maximum goes to the first row that has it.
    Raises ShapeError, DTypeError for indices or offsets that are not integers, RangeError for those out of range,
    ArgumentError for another mode, UndefinedError for per_sample_weights without "sum" and scale_grad_by_freq of "max".
    """
    name = "embedding_bag"
    check_choice(name, "mode", mode, "sum", "mean", "max")
    _check_bag_weights(input, weight, per_sample_weights, mode)
    if max_norm is not None:
        renormalize(input, weight, max_norm, norm_type)
    if switch(name, "scale_grad_by_freq", scale_grad_by_freq):
        if mode == "max":
            raise UndefinedError(name, "mode 'sum' or 'mean' with scale_grad_by_freq", repr(mode))
        weight = _scaled_by_uses(input, weight)
    starts, longest = _bag_starts(input, offsets, include_last_offset)
    flat = reshape(input, (-1,))
    scale = None if per_sample_weights is None else reshape(per_sample_weights, (-1,))
    return embedding_bag_(flat, weight, Tensor(starts), scale, mode, longest, padding_idx)


def _check_bag_weights(input: Tensor, weight: Tensor, scale: Tensor | None, mode: str) -> None:
    where = "embedding_bag"
    if weight.ndim != 2:
        raise ShapeError(where, "weight of shape [rows, width]", f"{tuple(weight.shape)}")
    if scale is None:
        return
    if mode != "sum":
        raise UndefinedError(where, "mode 'sum' with per_sample_weights", repr(mode))
    if scale.shape != input.shape:
        needs = f"per_sample_weights of the input's shape {tuple(input.shape)}"
        raise ShapeError(where, needs, f"{tuple(scale.shape)}")
    if scale.array.dtype != weight.array.dtype:
        raise DTypeError(where, f"per_sample_weights in {weight.dtype.name}, as weight", scale.dtype.name)


def _bag_starts(input: Tensor, offsets: Tensor | None, last: bool) -> tuple[Any, int]:
    """(the start of each bag and the end of the last [B + 1], an upper bound on the size of a bag)."""
    where, indices = "embedding_bag", input.array
    if input.ndim == 2 and offsets is None:
        return np.arange(len(indices) + 1, like=indices) * indices.shape[1], indices.shape[1]
    if input.ndim != 1 or offsets is None or offsets.ndim != 1 or (last and not offsets.array.size):
        found = f"{tuple(input.shape)} and {None if offsets is None else tuple(offsets.shape)}"
        raise ShapeError(where, "input [B, L], or input [n] with offsets [B]", found)
    array, size = offsets.array, indices.size
    if array.dtype.kind not in "iu":
        raise DTypeError(where, "integer offsets", array.dtype.name)
    array = array.astype(np.int64)
    before = np.concatenate((np.zeros_like(array[:1]), array[:-1]))
    first = np.arange(array.size, like=array) == 0
    bad = (array < before) | (array > size) | (first & (array != 0))
    check_values(where, array, bad, f"offsets from 0 to {size} that never decrease")
    if size and array.size == bool(last):
        raise ShapeError(where, "at least one bag", "no offsets for it")
    if last:
        return array, size
    return np.concatenate((array, np.full_like(array, size, shape=(1,)))), size


@op(cast=Cast.KEEP)
def embedding_bag_(
    input: Index,
    weight: Array,
    starts: Index,
    per_sample_weights: Array | None,
    mode,
    longest,
    padding_idx: int | None = None,
):
    """`embedding_bag` of indices [n] in bags of at most `longest`; starts [B + 1]: the first index of each bag, and the
    end of the last.
    """
    index, starts = plain(input), plain(starts)
    check_indices(index, len(weight))
    rows, included = np.take(weight, index, 0), _not_padding(index, len(weight), padding_idx)
    saved = Saved(input=input, weight=weight, starts=starts, per_sample_weights=per_sample_weights)
    saved.rows, saved.size = len(weight), len(index)
    first, last = starts[:-1], np.maximum(starts[1:] - 1, 0)
    if not len(rows):
        return np.zeros((len(first), rows.shape[1]), rows.dtype, like=rows), saved
    bag, row = _bags(starts, len(rows))
    rank = row - np.take(first, bag)
    if mode == "max":
        found = np.take(_running_argmax(rows, included, rank, longest), last, 0)
        saved.argmax = np.where((starts[1:] > first)[:, None], found, -1)
        return np.where(saved.argmax < 0, 0, np.take_along_axis(rows, np.maximum(saved.argmax, 0), 0)), saved
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    rows = rows if included is None else np.where(included[:, None], rows, 0)
    total = np.where((starts[1:] > first)[:, None], np.take(_running_sums(rows, rank, longest), last, 0), 0)
    return total / _bag_sizes(starts, included, total.dtype) if mode == "mean" else total, saved


@embedding_bag_.check
def embedding_bag_check(input, weight, starts, per_sample_weights, mode, longest, padding_idx):
    embedding_check(input, weight, padding_idx)


@embedding_bag_.backward(weight="per_sample_weights")
def embedding_bag_backward(dy, saved, needs, mode, longest, padding_idx):
    index, starts, scale = plain(saved.input), plain(saved.starts), saved.per_sample_weights
    included = _not_padding(index, saved.rows, padding_idx)
    bag, row = _bags(starts, saved.size)
    in_bag = row < starts[-1] if included is None else (row < starts[-1]) & included
    if mode == "mean":
        dy = dy / _bag_sizes(starts, included, dy.dtype)
    if not saved.size:
        return None, apply(sum_rows, dy[:0], index, rows=saved.rows) if needs[1] is not None else None, None, scale
    each = np.where(in_bag[:, None], np.take(dy, bag, 0), 0)
    dweight = dscale = None
    if needs[1] is not None:
        drows = each if scale is None else each * scale.reshape(-1, 1)
        if mode == "max":
            drows = np.where(np.take(saved.argmax, bag, 0) == row[:, None], each, 0)
        dweight = apply(sum_rows, drows, index, rows=saved.rows)
    if needs[3] is not None:
        dscale = blocked_sum(each * np.take(saved.weight, index, 0), 1)
    return None, dweight, None, dscale


def _not_padding(index: Any, rows: int, padding_idx: int | None) -> Any:
    return None if padding_idx is None else index != padding_idx % rows


def _bags(starts: Any, size: int) -> tuple[Any, Any]:
    # (the bag of each row, its index).
    row = np.arange(size, like=starts)
    return np.minimum(np.searchsorted(starts[1:], row, side="right"), len(starts) - 2), row


def _shifted(x: Any, by: int) -> Any:
    return np.concatenate((x[:by], x[:-by]))


def _running_sums(rows: Any, rank: Any, longest: int) -> Any:
    """Inclusive prefix sums within each bag, by doubling: log2(longest) rounds."""
    by = 1
    while by < min(longest, len(rows)):
        rows = np.where((rank >= by)[:, None], rows + _shifted(rows, by), rows)
        by *= 2
    return rows


def _running_argmax(rows: Any, included: Any, rank: Any, longest: int) -> Any:
    """Inclusive prefix argmax within each bag: the first of equals, -1 if no row is included."""
    argmax = np.broadcast_to(np.arange(len(rows), like=rank)[:, None], rows.shape)
    argmax, by = argmax if included is None else np.where(included[:, None], argmax, -1), 1
    while by < min(longest, len(rows)):
        other, before = _shifted(rows, by), _shifted(argmax, by)
        ahead = (before >= 0) & ((argmax < 0) | (other >= rows) | (other != other)) & (rank >= by)[:, None]
        rows, argmax, by = np.where(ahead, other, rows), np.where(ahead, before, argmax), 2 * by
    return argmax


def _bag_sizes(starts: Any, included: Any, dtype: Any) -> Any:
    """The number of rows of each bag [B, 1]; 1 where it has none."""
    if included is not None:
        starts = np.take(np.concatenate((starts[:1] * 0, np.cumsum(included))), starts)
    return np.maximum(starts[1:] - starts[:-1], 1).astype(dtype)[:, None]
