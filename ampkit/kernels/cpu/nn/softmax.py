"""CPU kernels of softmax and log_softmax (softmax.cpp), and of logsumexp, which is two reductions."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.native.arrays import (
    Function,
    HostArray,
    available,
    empty_like,
    need_view,
    rows_along,
    supported,
)
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.norms import register_softmax
from ampkit.kernels.shared.reduction import register_logsumexp

from ..pointwise import LAUNCHER
from ..reduction.reductions import fits, reduced

if available():
    register_logsumexp(LAUNCHER, reduced, fits)

_forward, _backward = Function("softmax_forward", "aai"), Function("softmax_backward", "aaai")


def _fits(input: HostArray, dim: int, dtype: Any) -> bool:
    return supported(input) and rows_along(input, dim) is not None


def _readable(dy: HostArray, saved: Saved, needs: Any, dim: int, dtype: Any) -> bool:
    return supported(dy, saved.out) and rows_along(saved.out, dim) is not None and rows_along(dy, dim) is not None


def _normalized(input: HostArray, dim: int, logarithm: bool, dtype: DType) -> HostArray:
    out = empty_like(input, dtype)
    _forward(need_view(rows_along(out, dim)), rows_along(input, dim), logarithm)
    return out


def _gradient(dy: HostArray, out: HostArray, dim: int, logarithm: bool, dtype: DType) -> HostArray:
    dx = empty_like(out, dtype)
    _backward(need_view(rows_along(dx, dim)), rows_along(dy, dim), rows_along(out, dim), logarithm)
    return dx


register_softmax(LAUNCHER, _normalized, _gradient, _fits, _readable)
