"""CPU kernel of rotary position embeddings (rotary.cpp)."""

from __future__ import annotations

from math import prod

import numpy as np

from ampkit.backends.cpu.native.arrays import (
    MIN_FUSED,
    Function,
    HostArray,
    broadcast_to,
    empty,
    merge_axes,
    supported,
)
from ampkit.base.dtypes import DType
from ampkit.kernels.shared.rotary import register_rotary

_rotary = Function("rotary", "aaaafi")


def _turned(
    input: HostArray, cos: HostArray, sin: HostArray, sign: float, interleaved: bool, dtype: DType
) -> HostArray:
    out = empty(input.shape, dtype)
    *lead, positions, width = input.shape
    shape = prod(lead), positions, width
    rows = merge_axes(input, shape)
    if rows is None and len(lead) == 2:  # the heads' queries as views of what one product made
        parts = list(zip(out, input, strict=True))
    else:
        parts = [(out.reshape(shape), np.ascontiguousarray(input).reshape(shape) if rows is None else rows)]
    for to, rows in parts:
        angles = [broadcast_to(a.reshape(-1, a.shape[-1]), (len(rows), positions, a.shape[-1])) for a in (cos, sin)]
        _rotary(to, rows, *angles, sign, interleaved)
    return out


register_rotary("cpu", _turned, supported, MIN_FUSED)
