"""CPU kernels of embedding: copies of rows, and their sums by index (indexing/gather_scatter.cpp)."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, reshape_view, supported
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.embedding import check_indices, embedding

from ..indexing.gather_scatter import summed_rows, taken_rows


@embedding.on("cpu", when=lambda input, weight, padding_idx: input.size * weight.shape[1] >= MIN_ELEMENTS)
def embedding_cpu(input: HostArray, weight: HostArray, padding_idx: int | None, *, dtype: DType) -> Any:
    check_indices(input, len(weight))
    out = taken_rows(weight[None], input.reshape(-1))
    return out.reshape(*input.shape, weight.shape[1]), Saved(input=input, rows=len(weight))


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, padding_idx: Any) -> bool:
    return needs[1] is not None and supported(dy) and dy.size > 0


@embedding.on_backward("cpu", when=_backward_fits)
def embedding_backward_cpu(dy: HostArray, saved: Saved, needs: Any, padding_idx: int | None) -> Any:
    rows = reshape_view(dy, (1, saved.input.size, dy.shape[-1]))
    skipped = -1 if padding_idx is None else padding_idx % saved.rows
    return None, summed_rows(rows, saved.input.reshape(-1), saved.rows, needs[1], skipped)[0]
