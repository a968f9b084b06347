"""CPU kernels of dropout (dropout.cpp): one pass draws the mask and applies it; the backward multiplies by the mask."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.native.arrays import KINDS, MIN_FUSED, Function, HostArray, empty, supported
from ampkit.base.dtypes import DType
from ampkit.core.random import keep_mask
from ampkit.kernels.shared.dropout import register_dropout
from ampkit.ops.nn.dropout import dropout_scale

from ..pointwise import elementwise

_forward = Function("dropout_forward", "pppiiifuu")


def _dropped(input: HostArray, p: float, seed: int, call: int, dtype: DType) -> tuple[HostArray, HostArray]:
    if not input.flags.c_contiguous:
        keep = keep_mask(seed, call, p, input.shape)
        return _masked(input, keep, p, dtype), keep
    out, keep = empty(input.shape, dtype), np.empty(input.shape, np.bool_)
    threshold, kind = round(p * 65536), KINDS[input.dtype]  # see random.keep_mask
    places = address(input), address(out), address(keep)
    _forward(*places, kind, input.size, threshold, dropout_scale(p), seed, call)
    return out, keep


def _masked(values: HostArray, keep: HostArray, p: float, dtype: DType) -> Any:
    """0 + scale * (values * keep)."""
    return elementwise.forward("AddCMul", (0.0, values, keep, dropout_scale(p)), dtype)


def _fits(values: HostArray, *more: Any, **params: Any) -> bool:
    return supported(values)


register_dropout("cpu", _dropped, _masked, _fits, _fits, MIN_FUSED)
