"""Kernels of dropout: the mask is drawn on the device, with the bits of the CPU's, in the pass that applies it.

The backward multiplies by the mask that was saved, a byte an element. Not yet run on a GPU.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED, blocks_for, drawn, launch, typed
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.dropout import dropout_, dropout_scale, mask

Array = Any
THREADS = 256


def _known(array: Array) -> bool:
    return array.dtype in STORED and 0 < array.size <= MAX_ELEMENTS


def _aligned(*arrays: Array) -> Any:
    return np.bool_(not any(a.data.ptr % 16 for a in arrays))


@mask.on("cuda")
def mask_cuda(like: Array, p: float, seed: int, call: int, shape: tuple[int, ...]) -> Array:
    there: Any = backends.backend_of(like)
    keep = there.empty(shape, np.dtype(bool))
    if not 0 < keep.size <= MAX_ELEMENTS:
        return NotImplemented
    least = np.uint32(round(p * 65536))  # see random.keep_mask
    blocks = blocks_for(keep.size, THREADS * 16)
    launch("nn/dropout", "dropout_mask", blocks, THREADS, keep, np.int64(keep.size), least, *drawn(there, seed, call))
    return keep


@dropout_.on("cuda", when=lambda input, *more, **params: _known(input))
def dropout_cuda(input: Array, p: float, seed: int, call: int, shape: Any, *, dtype: DType) -> Any:
    if dtype != input.dtype:
        return NotImplemented
    there: Any = backends.backend_of(input)
    x = contiguous(input)
    if prod(shape or input.shape) != input.size:
        keep = mask(input, p, seed, call, shape)
        return _masked(x, keep, p), Saved(keep=keep)
    keep, out = there.empty(input.shape, np.dtype(bool)), there.empty(input.shape, dtype)
    chance = np.uint32(round(p * 65536)), np.float32(dropout_scale(p))  # see random.keep_mask
    args = x, out, keep, np.int64(x.size), *chance, *drawn(there, seed, call), _aligned(x, out, keep)
    launch("nn/dropout", typed("dropout_forward", dtype), blocks_for(x.size, THREADS * 16), THREADS, *args)
    return out, Saved(keep=keep)


def _masked(values: Array, keep: Array, p: float) -> Array:
    """values * keep / (1 - p), where the mask may have an element for several values in a row."""
    out, each = backends.backend_of(values).empty(values.shape, values.dtype), values.size // keep.size
    wide = _aligned(values, keep, out) & np.bool_(each == 1)
    args = values, keep, out, np.int64(values.size), np.int64(each), np.float32(dropout_scale(p)), wide
    launch("nn/dropout", typed("dropout_backward", values.dtype), blocks_for(values.size, THREADS * 8), THREADS, *args)
    return out


def _back_fits(dy: Array, saved: Saved, needs: Any, **params: Any) -> bool:
    return _known(dy) and needs[0] == dy.dtype and bool(saved.keep.flags.c_contiguous)


@dropout_.on_backward("cuda", when=_back_fits)
def dropout_backward_cuda(dy: Array, saved: Saved, needs: Any, p: float, seed: int, call: int, shape: Any) -> Array:
    return _masked(contiguous(dy), saved.keep, p)
