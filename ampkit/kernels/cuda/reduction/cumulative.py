"""CUDA kernels of cumsum on contiguous arrays: a block per row for the last axis, else a thread per column."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import supports_array
from ampkit.backends.cuda.nvrtc import blocks_for, launch, typed
from ampkit.base.dtypes import Array, DType, float32
from ampkit.base.errors import UnsupportedError
from ampkit.kernels.shared.reduction import register_cumsum

BLOCK = 256


def _supports(x: Array, dim: int) -> bool:
    return supports_array(x) and x.ndim > 0 and bool(x.flags.c_contiguous)


def _cumsum(x: Array, dim: int, dtype: DType, reverse: bool) -> Any:
    """Cumulative sum along `dim` in float32, rounded to `dtype`; from the end if `reverse`, which is the gradient."""
    if dtype not in (x.dtype, float32) and x.dtype != float32:
        raise UnsupportedError
    out, axis = backends.backend_of(x).empty(x.shape, dtype), dim % x.ndim
    n, inner = x.shape[axis], prod(x.shape[axis + 1 :])
    columns = x.size // n
    if inner == 1:
        threads, entry = (32 if n <= 128 else BLOCK), typed("cumsum_rows", x.dtype, dtype)
        launch("reduction/cumulative", entry, columns, threads, x, out, np.int64(n), np.bool_(reverse))
    else:
        sizes, entry = map(np.int64, (columns, n, inner)), typed("cumsum_columns", x.dtype, dtype)
        launch("reduction/cumulative", entry, blocks_for(columns, BLOCK), BLOCK, x, out, *sizes, np.bool_(reverse))
    return out


register_cumsum("cuda", _cumsum, _supports)
