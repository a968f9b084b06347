"""CPU kernels of index_select (gather_scatter.cpp)."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, reshape_view, supported
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.argument_checks import check_index_range
from ampkit.ops.indexing.index_select import index_select

from .deterministic_scatter import rows_added
from .gather_scatter import taken_rows


@index_select.on("cpu", when=lambda input, dim, index: input.ndim > 0 and index.size > 0, min_elements=MIN_ELEMENTS)
def index_select_cpu(input: HostArray, dim: int, index: HostArray, *, dtype: DType) -> Any:
    at = dim % input.ndim
    check_index_range("index_select", index, input.shape[at])
    rows = reshape_view(input, (prod(input.shape[:at]), input.shape[at], prod(input.shape[at + 1 :])))
    out = taken_rows(rows, index.reshape(-1))
    shape = *input.shape[:at], index.size, *input.shape[at + 1 :]
    return out.reshape(shape), Saved(index=index, shape=input.shape)


@index_select.on_backward("cpu", when=lambda dy, saved, needs, dim: dy.ndim > 0 and supported(dy) and dy.size > 0)
def index_select_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: int) -> Any:
    index = (slice(None),) * (dim % dy.ndim) + (saved.index.reshape(-1),)
    return rows_added(dy, index, saved.shape, needs[0]), None
