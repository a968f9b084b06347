"""CUDA kernels of embedding: rows are gathered by index; the gradient of the table is a deterministic segment sum."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch import segment_sum
from ampkit.backends.cuda.launch.row_copy import can_gather_rows, gather_rows
from ampkit.base.dtypes import Array
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.indexing import register_embedding


def _supports_backward(dy: Array, saved: Saved, needs: Any, padding_idx: Any) -> bool:
    return needs[1] is not None and segment_sum.fits(dy, saved.input, saved.rows, needs[1])


register_embedding(
    "cuda",
    gather_rows,
    segment_sum.sums,
    lambda input, weight, padding_idx: can_gather_rows(weight, input, len(weight)),
    _supports_backward,
)
