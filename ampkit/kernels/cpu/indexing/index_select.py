"""CPU kernels of index_select (gather_scatter.cpp)."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, reshape_view, supported
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.indexing import register_index_select
from ampkit.ops.indexing.index_select import index_select

from .deterministic_scatter import rows_added
from .gather_scatter import taken_rows

register_index_select(
    "cpu", taken_rows, lambda input, dim, index: input.ndim > 0 and index.size > 0, reshape_view, MIN_ELEMENTS
)


@index_select.on_backward("cpu", when=lambda dy, saved, needs, dim: dy.ndim > 0 and supported(dy) and dy.size > 0)
def index_select_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: int) -> Any:
    index = (slice(None),) * (dim % dy.ndim) + (saved.index.reshape(-1),)
    return rows_added(dy, index, saved.shape, needs[0]), None
