"""CUDA kernel of rotary position embeddings (rotary.cu)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous, supports_array
from ampkit.backends.cuda.nvrtc import blocks_for, launch, typed
from ampkit.base.dtypes import Array, DType, float32
from ampkit.kernels.shared.rotary import register_rotary

THREADS, HEADS = 256, 16  # of a block; that a thread turns, as in rotary.cu


def _fits(input: Array, cos: Array, sin: Array) -> bool:
    return supports_array(input) and cos.dtype == sin.dtype and cos.dtype in (input.dtype, float32)


def _turned(input: Array, cos: Array, sin: Array, sign: float, interleaved: bool, dtype: DType) -> Array:
    backend: Any = backends.backend_of(input)
    *lead, positions, width = input.shape
    cos, sin = (contiguous(a.reshape(-1, a.shape[-1])) for a in (cos, sin))
    pairs, item = cos.shape[1], input.itemsize
    strided = len(lead) == 2 and input.strides[-1] == item  # the heads' queries as views of what one product made
    x = input if strided else contiguous(input).reshape(prod(lead), 1, positions, width)
    out = backend.empty(input.shape, input.dtype)
    steps = [step // item for step in x.strides[:3]]
    angle_step = pairs if len(cos) > 1 else 0
    starts = [array.data.ptr % 16 for array in (x, cos, sin, out)]
    v = 1 if any((*starts, width % 8, pairs % 4, *(step % 8 for step in steps))) else 4
    total = len(x) * positions * -(-width // (2 * v))
    grid = min(blocks_for(total, THREADS), 2**20), blocks_for(x.shape[1], HEADS)
    sizes = np.int64(total), *map(np.uint32, (x.shape[1], positions, width, pairs))
    args = x, cos, sin, out, *sizes, *map(np.int64, (*steps, angle_step)), np.float32(sign), np.bool_(interleaved)
    entry = typed("rotary", input.dtype, cos.dtype, v)
    launch("pointwise/rotary", entry, grid, THREADS, *args)
    return out if dtype == out.dtype else backend.cast(out, dtype)


register_rotary("cuda", _turned, _fits)
