"""CPU kernels of x[index] for rows and masks, and of its gradient (gather_scatter.cpp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, reshape_view, supported
from ampkit.base.dtypes import DType
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.indexing import row_index
from ampkit.ops.indexing.getitem import advanced_getitem

from .deterministic_scatter import flat_keys, rows_added
from .gather_scatter import taken_rows


@advanced_getitem.on("cpu", min_elements=MIN_ELEMENTS)
def getitem_cpu(input: HostArray, index: Any, *, dtype: DType) -> Any:
    if len(index) == 1 and getattr(index[0], "dtype", None) == np.bool_ and index[0].shape == input.shape:
        # The places first: NumPy's own selection by a mask branches for each element.
        return np.take(input.reshape(-1), np.flatnonzero(index[0])), Saved(shape=input.shape)
    found = row_index(index, input.shape, flat_keys)
    if not found.keys.size:
        raise UnsupportedError
    return taken_rows(reshape_view(input, found.sizes), found.keys).reshape(found.result), Saved(shape=input.shape)


@advanced_getitem.on_backward("cpu", when=lambda dy, saved, needs, index: supported(dy) and dy.size >= MIN_ELEMENTS)
def getitem_backward_cpu(dy: HostArray, saved: Saved, needs: Any, index: Any) -> Any:
    return rows_added(dy, index, saved.shape, needs[0])
