"""CPU kernels of dropout: a product with the mask in the input's dtype, by oneDNN."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.onednn import binary
from ampkit.backends.cpu.onednn.primitive import MIN_ELEMENTS, HostArray
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.core.random import keep_mask
from ampkit.ops.nn.dropout import dropout_, dropout_scale


def _fits(array: HostArray) -> bool:
    return binary.fits(array, array)


def _masked(values: HostArray, keep: HostArray, p: float) -> HostArray | None:
    if keep.shape == values.shape:
        return binary.by_mask(values, keep, dropout_scale(p))
    return binary.spread("mul", values, keep * np.float32(dropout_scale(p)))  # of a mask for several values at once


@dropout_.on("cpu", when=lambda input, *more: _fits(input), min_elements=MIN_ELEMENTS)
def dropout_cpu(input: HostArray, p: float, seed: int, call: int, shape: Any, *, dtype: DType) -> Any:
    keep = keep_mask(seed, call, p, shape or input.shape)
    out = _masked(input, keep, p)
    return NotImplemented if out is None else (out, Saved(keep=keep))


def _back_fits(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
    return needs[0] == dy.dtype and _fits(dy)


@dropout_.on_backward("cpu", when=_back_fits, min_elements=MIN_ELEMENTS)
def dropout_backward_cpu(dy: HostArray, saved: Saved, needs: Any, p: float, seed: int, call: int, shape: Any) -> Any:
    dx = _masked(dy, saved.keep, p)
    return NotImplemented if dx is None else dx
