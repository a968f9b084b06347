"""Embedding: rows of a table, looked up by index; the gradient adds them up again."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator
from ampkit.base.errors import DTypeError, RangeError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.torch_compat import CompatArg

__all__ = ["embedding"]


@op(cast=Cast.KEEP, moves=True)
def embedding(
    input: Index,
    weight: Array,
    padding_idx: int | None = None,
    max_norm: CompatArg = None,
    norm_type: CompatArg = 2.0,
    scale_grad_by_freq: CompatArg = False,
    sparse: CompatArg = False,
):
    """The rows of `weight` that `input` names.

    input [...] integers from 0 to V - 1, weight [V, D] -> [..., D], in the dtype of weight. The gradient of a row is
    the sum over its uses, in float32 (float64 for float64), in a fixed order; row `padding_idx` gets none.
    Raises ShapeError if weight is no matrix, DTypeError if input holds no integers, RangeError for an index outside the
    table, named with its position, ArgumentError for max_norm, scale_grad_by_freq and sparse, which are not here.
    """
    check_indices(plain(input), len(weight))
    return np.take(weight, input, 0), Saved(input=input, rows=len(weight))


@embedding.check
def embedding_check(input, weight, padding_idx):
    if weight.ndim != 2:
        raise ShapeError("embedding", "weight of shape [rows, width]", f"{tuple(weight.shape)}")
    if input.dtype.kind not in "iu":
        raise DTypeError(
            "embedding", "integer indices", input.dtype.name, "the indices come first: embedding(input, weight)"
        )
    rows = len(weight)
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise RangeError("embedding", f"padding_idx from {-rows} to {rows - 1}", f"{padding_idx}")


def check_indices(index: Any, rows: int) -> None:
    def fail(value: int, position: Any) -> None:
        raise RangeError("embedding", f"indices from 0 to {rows - 1} ({rows} rows)", f"{value} at position {position}")

    backends.backend_of(index).raise_if(index, (index < 0) | (index >= rows), fail)


@embedding.backward
def embedding_backward(dy, saved, needs, padding_idx):
    index = plain(saved.input)
    if padding_idx is not None:
        dy = np.where((index != padding_idx % saved.rows)[..., None], dy, 0)
    wide = accumulator(dy.dtype)
    dy = dy if dy.dtype == wide else dy.astype(wide)
    return None, apply(sum_rows, dy, index, rows=saved.rows)


@op(cast=Cast.KEEP)
def sum_rows(input: Array, index: Index, rows):
    """Sum of the rows of `input` that share an index.

    input [..., D], index [...] integers from 0 to rows - 1 -> [rows, D]; summed in float32 (float64 for float64),
    pairwise and in a fixed order: the same bits every time.
    """
    width = input.shape[-1]
    sums, places = _segments(
        input.reshape(-1, width) if width else input.reshape(index.size, 0), plain(index).reshape(-1)
    )
    out = np.zeros((rows, width), input.dtype, like=input)
    out[places] = sums
    return out, Saved(index=index)


@sum_rows.backward
def sum_rows_backward(dy, saved, needs, rows):
    return apply(embedding, plain(saved.index), dy)


def _segments(values: Any, index: Any) -> tuple[Any, Any]:
    # Sorted by index, equal neighbours are added in pairs until each index is there once: log2(most repeats) rounds.
    order = np.argsort(index, kind="stable")
    index = index[order]
    while (index[1:] == index[:-1]).any():
        steps = np.arange(len(index), like=index)
        first = np.concatenate((steps[:1] == 0, index[1:] != index[:-1]))
        place = steps - np.flatnonzero(first)[np.cumsum(first) - 1]  # among the equal ones
        even = place % 2 == 0
        odd = np.flatnonzero(~even)
        pairs = np.cumsum(even)[odd] - 1
        merged = values[order[even]]
        merged[pairs] += values[order[odd]]
        values, index, order = merged, index[even], np.arange(len(merged), like=index)
    return values[order], index
