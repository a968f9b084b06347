"""CPU kernels of cdist for p = 2, and of its gradient (distances.cpp)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import MIN_FUSED, Function, HostArray, empty, supported
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.linalg.distances import cdist

_distances, _backward = Function("distances", "aaa"), Function("distances_backward", "aaaa")


def _fits(x1: HostArray, x2: HostArray, p: float) -> bool:
    return p == 2 and supported(x1, x2) and x1.shape[:-2] == x2.shape[:-2] and x1.size > 0 and x2.size > 0


def _batch(x: HostArray) -> HostArray:
    """`x` [.., n, m] as [a, n, m] in float32, contiguous."""
    return np.ascontiguousarray(in_format(x, float32)).reshape(prod(x.shape[:-2]), *x.shape[-2:])


@cdist.on("cpu", when=_fits, min_elements=MIN_FUSED)
def cdist_cpu(x1: HostArray, x2: HostArray, p: float, *, dtype: DType) -> Any:
    out = empty((*x1.shape[:-1], x2.shape[-2]), float32)
    _distances(_batch(out), _batch(x1), _batch(x2))
    out = in_format(out, dtype)
    return out, Saved(x1=x1, x2=x2, out=out)


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, p: float) -> bool:
    return supported(dy, saved.out) and _fits(saved.x1, saved.x2, p)


@cdist.on_backward("cpu", when=_backward_fits)
def cdist_backward_cpu(dy: HostArray, saved: Saved, needs: Any, p: float) -> Any:
    out, (left, right) = in_format(saved.out, float32), map(_batch, (saved.x1, saved.x2))
    weight = _batch(np.where(out == 0, 0, in_format(dy, float32) / np.where(out == 0, 1, out)))
    return _gradient(left, right, weight, saved.x1.shape, needs[0]), _gradient(
        right, left, weight.transpose(0, 2, 1), saved.x2.shape, needs[1]
    )


def _gradient(x1: HostArray, x2: HostArray, weight: HostArray, shape: Any, dtype: DType | None) -> HostArray | None:
    if dtype is None:
        return None
    dx = empty(x1.shape, float32)
    _backward(dx, x1, x2, weight)
    return in_format(dx, dtype).reshape(shape)
