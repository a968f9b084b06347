"""CUDA kernels of argmax, argmin, max and min along the last axis of contiguous arrays or over all: a block per row."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import supports_array
from ampkit.backends.cuda.nvrtc import launch, typed
from ampkit.base.dtypes import Array, int64
from ampkit.kernels.shared.sorting import register_extremes


def _supports(input: Array, dim: Any, keepdim: bool = False) -> bool:
    last = dim is None or dim in (-1, input.ndim - 1)
    return last and supports_array(input) and bool(input.flags.c_contiguous) and input.ndim > 0


def _places(input: Array, dim: Any, smallest: bool) -> Array:
    out = backends.backend_of(input).empty((1,) * input.ndim if dim is None else (*input.shape[:-1], 1), int64)
    n = input.size // out.size
    entry = typed("argbest_rows", "ArgMin" if smallest else "ArgMax", input.dtype)
    launch("reduction/reductions", entry, out.size, 128 if n <= 1024 else 1024, input, out, np.int64(n))
    return out


register_extremes("cuda", _places, np.take_along_axis, _supports)
