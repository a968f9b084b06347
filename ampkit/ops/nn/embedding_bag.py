"""Bags: rows of a table, looked up by index and put together, a vector for each bag of indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..shape.view import reshape
from .embedding import embedding

__all__ = ["embedding_bag"]

MODES = ("sum", "mean", "max")


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: CompatArg = None,
    norm_type: CompatArg = 2,
    scale_grad_by_freq: CompatArg = False,
    mode: str = "mean",
    sparse: CompatArg = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of the rows of `weight` that each bag names; of an empty bag 0.

    input [B, L]: a bag in each row; or [n] with offsets [B], where each bag begins, from 0 on and never decreasing, and
    with include_last_offset [B + 1], where the last one ends; weight [V, D]; per_sample_weights, like input, multiply
    the rows of a sum -> [B, D], in the dtype of weight. Indices equal to `padding_idx` are in no bag. Summed in float32
    (float64 for float64), in a fixed order. A maximum passes its gradient to the first row that has it.
    Raises ShapeError, DTypeError for indices or offsets that are no integers, RangeError for those out of range,
    ArgumentError for another mode, and for per_sample_weights without "sum".
    """
    where = "embedding_bag"
    if mode not in MODES:
        raise ArgumentError(where, "mode 'sum', 'mean' or 'max'", repr(mode))
    _check_weights(input, weight, per_sample_weights, mode)
    begins, longest = _begins(input, offsets, include_last_offset)
    rows = reshape(embedding(reshape(input, (-1,)), weight, padding_idx), (input.array.size, weight.shape[1]))
    counted = None if padding_idx is None else Tensor(reshape(input, (-1,)).array != padding_idx % len(weight))
    scales = None if per_sample_weights is None else reshape(per_sample_weights, (-1,))
    return embedding_bag_(rows, Tensor(begins), counted, scales, mode, longest)


def _check_weights(input: Tensor, weight: Tensor, scales: Tensor | None, mode: str) -> None:
    where = "embedding_bag"
    if weight.ndim != 2:
        raise ShapeError(where, "weight of shape [rows, width]", f"{tuple(weight.shape)}")
    if scales is None:
        return
    if mode != "sum":
        raise ArgumentError(where, "mode 'sum' with per_sample_weights", repr(mode))
    if scales.shape != input.shape:
        raise ShapeError(
            where, f"per_sample_weights of the input's shape {tuple(input.shape)}", f"{tuple(scales.shape)}"
        )
    if scales.dtype != weight.dtype:
        raise DTypeError(where, f"per_sample_weights in {weight.dtype.name}, as weight", scales.dtype.name)


def _begins(input: Tensor, offsets: Tensor | None, last: bool) -> tuple[Any, int]:
    """Where each bag begins, and the last one ends [B + 1]; how many indices a bag has at most."""
    where, indices = "embedding_bag", input.array
    if input.ndim == 2 and offsets is None:
        return np.arange(len(indices) + 1, like=indices) * indices.shape[1], indices.shape[1]
    if input.ndim != 1 or offsets is None or offsets.ndim != 1 or (last and not offsets.array.size):
        found = f"{tuple(input.shape)} and {None if offsets is None else tuple(offsets.shape)}"
        raise ShapeError(where, "input [B, L], or input [n] with offsets [B]", found)
    given, size = offsets.array, indices.size
    if given.dtype.kind not in "iu":
        raise DTypeError(where, "integer offsets", given.dtype.name)
    given = given.astype(np.int64)

    def fail(value: int, position: int) -> None:
        raise RangeError(where, f"offsets from 0 to {size} that never decrease", f"{value} at position {position}")

    before = np.concatenate((np.zeros_like(given[:1]), given[:-1]))
    first = np.arange(given.size, like=given) == 0
    backends.backend_of(given).raise_if(given, (given < before) | (given > size) | (first & (given != 0)), fail)
    if size and given.size == bool(last):
        raise ShapeError(where, "at least one bag", "no offsets for it")
    if last:
        return given, size
    return np.concatenate((given, np.full_like(given, size, shape=(1,)))), size


@op(cast=Cast.KEEP)
def embedding_bag_(input: Array, begins: Index, counted: Index | None, per_sample_weights: Array | None, mode, longest):
    """`embedding_bag` of rows that were looked up: no bag has more than `longest`.

    input [n, D], begins [B + 1], the first row of each bag and the end of the last; counted [n], False for a row that
    is in no bag; per_sample_weights [n] -> [B, D].
    """
    first, last = begins[:-1], np.maximum(begins[1:] - 1, 0)
    saved = Saved(input=input, begins=begins, counted=counted, per_sample_weights=per_sample_weights, size=len(input))
    if not len(input):
        return np.zeros((len(first), input.shape[1]), input.dtype, like=input), saved
    bag, row = _bags(begins, len(input))
    inside = row - np.take(first, bag)
    if mode == "max":
        found = np.take(_winners(input, counted, inside, longest), last, 0)
        saved.winner = np.where((begins[1:] > first)[:, None], found, -1)
        return np.where(saved.winner < 0, 0, np.take_along_axis(input, np.maximum(saved.winner, 0), 0)), saved
    rows = input if per_sample_weights is None else input * per_sample_weights[:, None]
    rows = rows if counted is None else np.where(counted[:, None], rows, 0)
    total = np.where((begins[1:] > first)[:, None], np.take(_sums(rows, inside, longest), last, 0), 0)
    return total / _numbers(begins, counted, total.dtype) if mode == "mean" else total, saved


@embedding_bag_.backward(input="per_sample_weights")
def embedding_bag_backward(dy, saved, needs, mode, longest):
    begins, counted, scales = plain(saved.begins), plain(saved.counted), saved.per_sample_weights
    bag, row = _bags(begins, saved.size)
    held = row < begins[-1] if counted is None else (row < begins[-1]) & counted
    if mode == "mean":
        dy = dy / _numbers(begins, counted, dy.dtype)
    if not saved.size:
        return np.zeros_like(plain(dy), shape=(0, dy.shape[1])), None, None, scales
    each = np.where(held[:, None], np.take(dy, bag, 0), 0)
    if mode == "max":
        return np.where(np.take(saved.winner, bag, 0) == row[:, None], each, 0), None, None, None
    drows = each if scales is None else each * scales.reshape(-1, 1)
    return drows, None, None, blocked_sum(each * saved.input, 1) if needs[3] is not None else None


def _bags(begins: Any, size: int) -> tuple[Any, Any]:
    # The bag of each row, and the number of the row.
    row = np.arange(size, like=begins)
    return np.minimum(np.searchsorted(begins[1:], row, side="right"), len(begins) - 2), row


def _earlier(x: Any, by: int) -> Any:
    return np.concatenate((x[:by], x[:-by]))


def _sums(rows: Any, inside: Any, longest: int) -> Any:
    """Of each row and those before it in its bag, in pairs of pairs: log2(longest) rounds."""
    by = 1
    while by < min(longest, len(rows)):
        rows = np.where((inside >= by)[:, None], rows + _earlier(rows, by), rows)
        by *= 2
    return rows


def _winners(rows: Any, counted: Any, inside: Any, longest: int) -> Any:
    """Which row has the maximum, of each row and those before it in its bag: the first of equals, -1 if none counts."""
    place = np.broadcast_to(np.arange(len(rows), like=inside)[:, None], rows.shape)
    place, by = place if counted is None else np.where(counted[:, None], place, -1), 1
    while by < min(longest, len(rows)):
        other, before = _earlier(rows, by), _earlier(place, by)
        ahead = (before >= 0) & ((place < 0) | (other >= rows) | (other != other)) & (inside >= by)[:, None]
        rows, place, by = np.where(ahead, other, rows), np.where(ahead, before, place), 2 * by
    return place


def _numbers(begins: Any, counted: Any, dtype: Any) -> Any:
    """How many rows a bag has [B, 1]; 1 where it has none."""
    if counted is not None:
        begins = np.take(np.concatenate((begins[:1] * 0, np.cumsum(counted))), begins)
    return np.maximum(begins[1:] - begins[:-1], 1).astype(dtype)[:, None]
