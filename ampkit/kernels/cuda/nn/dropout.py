"""CUDA kernels of dropout: one kernel draws the mask and applies it; the random bits equal those of the CPU.

The mask is saved as one byte per element, and the backward multiplies by it.
"""

from __future__ import annotations

from math import prod
from operator import eq
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous, supports_array
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, blocks_for, drawn, launch, typed
from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.dropout import register_dropout
from ampkit.ops.nn.dropout import dropout_scale, mask

THREADS = 256


def _all_aligned(*arrays: Array) -> Any:
    return np.bool_(not any(a.data.ptr % 16 for a in arrays))


@mask.on("cuda", when=lambda like, p, seed, call, shape: 0 < prod(shape) <= MAX_ELEMENTS)
def mask_cuda(like: Array, p: float, seed: int, call: int, shape: tuple[int, ...]) -> Array:
    backend: Any = backends.backend_of(like)
    keep = backend.empty(shape, np.dtype(bool))
    threshold = np.uint32(round(p * 65536))  # see random.keep_mask
    blocks = blocks_for(keep.size, THREADS * 16)
    args = keep, np.int64(keep.size), threshold, *drawn(backend, seed, call)
    launch("nn/dropout", "dropout_mask", blocks, THREADS, *args)
    return keep


def _dropped(input: Array, p: float, seed: int, call: int, dtype: DType) -> tuple[Array, Array]:
    backend: Any = backends.backend_of(input)
    x = contiguous(input)
    keep, out = backend.empty(input.shape, np.dtype(bool)), backend.empty(input.shape, dtype)
    threshold_and_scale = np.uint32(round(p * 65536)), np.float32(dropout_scale(p))  # see random.keep_mask
    args = x, out, keep, np.int64(x.size), *threshold_and_scale, *drawn(backend, seed, call), _all_aligned(x, out, keep)
    launch("nn/dropout", typed("dropout_forward", dtype), blocks_for(x.size, THREADS * 16), THREADS, *args)
    return out, keep


def _masked(values: Array, keep: Array, p: float, dtype: DType) -> Array:
    """values * keep / (1 - p); an element of `keep` applies to values.size / keep.size consecutive values."""
    values = contiguous(values)
    out, repeats = backends.backend_of(values).empty(values.shape, values.dtype), values.size // keep.size
    vectorize = _all_aligned(values, keep, out) & np.bool_(repeats == 1)
    args = values, keep, out, np.int64(values.size), np.int64(repeats), np.float32(dropout_scale(p)), vectorize
    launch("nn/dropout", typed("dropout_backward", values.dtype), blocks_for(values.size, THREADS * 8), THREADS, *args)
    return out


def _supports_backward(dy: Array, saved: Saved, needs: Any, **params: Any) -> bool:
    return supports_array(dy) and needs[0] == dy.dtype and bool(saved.keep.flags.c_contiguous)


register_dropout(
    "cuda", _dropped, _masked, lambda input, *more, **params: supports_array(input), _supports_backward, dtypes=eq
)
