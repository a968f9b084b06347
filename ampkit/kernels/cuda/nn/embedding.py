"""CUDA kernels of embedding: rows are gathered by index; the gradient of the table is a deterministic segment sum."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch import segment_sum
from ampkit.backends.cuda.launch.row_copy import can_gather_rows, gather_rows
from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.embedding import check_indices, embedding


@embedding.on("cuda", when=lambda input, weight, *rest, **params: can_gather_rows(weight, input, len(weight)))
def embedding_cuda(input: Array, weight: Array, padding_idx: int | None, *, dtype: DType) -> Any:
    check_indices(input, len(weight))
    out = gather_rows(weight, input, len(weight)).reshape(*input.shape, weight.shape[1])
    return out, Saved(input=input, rows=len(weight))


def _supports_backward(dy: Array, saved: Saved, needs: Any, padding_idx: Any) -> bool:
    return needs[1] is not None and segment_sum.fits(dy, saved.input, saved.rows, needs[1])


@embedding.on_backward("cuda", when=_supports_backward)
def embedding_backward_cuda(dy: Array, saved: Saved, needs: Any, padding_idx: int | None) -> Any:
    ignored = -1 if padding_idx is None else padding_idx % saved.rows
    order = segment_sum.ordered(saved.input, saved.rows, ignored)
    return None, segment_sum.sums(dy, order, needs[1]).reshape(saved.rows, dy.shape[-1])
