"""CUDA kernels of argmax, argmin, max and min along the last axis of contiguous arrays or over all: a block per row."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import supports_array
from ampkit.backends.cuda.nvrtc import launch, typed
from ampkit.base.dtypes import Array, DType, int64
from ampkit.core.autograd.saved import Saved
from ampkit.ops.reduction import sorting


def _supports(input: Array, dim: Any, keepdim: bool = False) -> bool:
    last = dim is None or dim in (-1, input.ndim - 1)
    return last and supports_array(input) and bool(input.flags.c_contiguous) and input.ndim > 0


def _arg_extreme(kind: str, input: Array, dim: Any, keepdim: bool) -> Array:
    """The int64 index of the extreme; kind: "ArgMax" or "ArgMin"."""
    lead = (1,) * input.ndim if dim is None else (*input.shape[:-1], 1)
    out = backends.backend_of(input).empty(lead, int64)
    n = input.size // out.size
    entry = typed("argbest_rows", kind, input.dtype)
    launch("reduction/reductions", entry, out.size, 128 if n <= 1024 else 1024, input, out, np.int64(n))
    return out if keepdim else out.reshape(() if dim is None else lead[:-1])


@sorting.argmax.on("cuda", when=_supports)
def argmax_cuda(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    return _arg_extreme("ArgMax", input, dim, keepdim), Saved()


@sorting.argmin.on("cuda", when=_supports)
def argmin_cuda(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    return _arg_extreme("ArgMin", input, dim, keepdim), Saved()


@sorting.max_.on("cuda", when=_supports)
def max_cuda(input: Array, dim: int, keepdim: bool, *, dtype: DType) -> Any:
    return sorting.values_at(input, _arg_extreme("ArgMax", input, dim, True), dim, keepdim)


@sorting.min_.on("cuda", when=_supports)
def min_cuda(input: Array, dim: int, keepdim: bool, *, dtype: DType) -> Any:
    return sorting.values_at(input, _arg_extreme("ArgMin", input, dim, True), dim, keepdim)
