"""Kernel of adaptive maxima: where they stand, see `pooling`."""

from __future__ import annotations

from typing import Any

from ampkit.base.dtypes import DType
from ampkit.ops.nn.adaptive_max_pool import adaptive_max_pool_

from .pool_windows import evenly, fits, places

Array = Any


@adaptive_max_pool_.on("cuda", when=fits)
def adaptive_max_pool_cuda(input: Array, out: Any, *, dtype: DType) -> Array:
    return places(input, evenly(input.shape[-len(out) :], out))
