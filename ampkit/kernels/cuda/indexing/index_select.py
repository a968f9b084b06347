"""CUDA kernel of index_select: a gather of slices."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.backends.cuda.launch.row_copy import can_gather_rows, gather_rows
from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.argument_checks import check_index_range
from ampkit.ops.indexing.index_select import index_select


def _supports(input: Array, dim: int, index: Array) -> bool:
    return input.ndim > 0 and can_gather_rows(input, index, input.shape[dim])


@index_select.on("cuda", when=_supports)
def index_select_cuda(input: Array, dim: int, index: Array, *, dtype: DType) -> Any:
    at = dim % input.ndim
    check_index_range("index_select", index, input.shape[at])
    out = gather_rows(input, index, input.shape[at], prod(input.shape[:at]))
    shape = *input.shape[:at], index.size, *input.shape[at + 1 :]
    return out.reshape(shape), Saved(index=index, shape=input.shape)
