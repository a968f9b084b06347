"""CPU kernels of dropout (dropout.cpp): one pass draws the mask and applies it; the backward multiplies by the mask."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.native.arrays import KINDS, MIN_FUSED, Function, HostArray, empty, supported
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.core.random import keep_mask
from ampkit.ops.nn.dropout import dropout_, dropout_scale

from ..pointwise import elementwise

_forward = Function("dropout_forward", "pppiiifuu")


@dropout_.on("cpu", when=lambda input, *more: supported(input), min_elements=MIN_FUSED)
def dropout_cpu(input: HostArray, p: float, seed: int, call: int, shape: Any, *, dtype: DType) -> Any:
    if prod(shape or input.shape) != input.size or not input.flags.c_contiguous:  # a mask for several values at once
        keep = keep_mask(seed, call, p, shape or input.shape)
        return _masked(input, keep, p, dtype), Saved(keep=keep)
    out, keep = empty(input.shape, dtype), np.empty(input.shape, np.bool_)
    threshold, kind = round(p * 65536), KINDS[input.dtype]  # see random.keep_mask
    places = address(input), address(out), address(keep)
    _forward(*places, kind, input.size, threshold, dropout_scale(p), seed, call)
    return out, Saved(keep=keep)


def _masked(values: HostArray, keep: HostArray, p: float, dtype: DType) -> Any:
    """0 + scale * (values * keep)."""
    return elementwise.forward("AddCMul", (0.0, values, keep, dropout_scale(p)), dtype)


@dropout_.on_backward("cpu", when=lambda dy, *more, **params: supported(dy), min_elements=MIN_FUSED)
def dropout_backward_cpu(dy: HostArray, saved: Saved, needs: Any, p: float, seed: int, call: int, shape: Any) -> Any:
    return _masked(dy, saved.keep, p, needs[0])
