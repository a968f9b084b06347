"""CUDA kernel of index_select: a gather of slices."""

from __future__ import annotations

from ampkit.backends.cuda.launch.row_copy import can_gather_rows, gather_rows
from ampkit.base.dtypes import Array
from ampkit.kernels.shared.indexing import register_index_select


def _supports(input: Array, dim: int, index: Array) -> bool:
    return input.ndim > 0 and can_gather_rows(input, index, input.shape[dim])


register_index_select("cuda", gather_rows, _supports)
