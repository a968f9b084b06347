"""CPU kernels of softmax, log_softmax (softmax.cpp) and logsumexp (reductions.cpp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import (
    MIN_ELEMENTS,
    MIN_FUSED,
    Function,
    HostArray,
    empty_like,
    need_view,
    rows_along,
    supported,
)
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.softmax import log_softmax, logsumexp, softmax

from ..reduction import reductions as r

_forward, _backward = Function("softmax_forward", "aai"), Function("softmax_backward", "aaai")


def _fits(input: HostArray, dim: int, dtype: Any) -> bool:
    return supported(input) and rows_along(input, dim) is not None


def _register(op: Any, logarithm: bool) -> None:
    def forward(input: HostArray, dim: int, dtype: DType) -> Any:
        out = empty_like(input, dtype)
        _forward(need_view(rows_along(out, dim)), rows_along(input, dim), logarithm)
        return out, Saved(out=out)

    def backward_fits(dy: HostArray, saved: Saved, needs: Any, dim: int, dtype: Any) -> bool:
        return supported(dy, saved.out) and _fits(saved.out, dim, dtype) and rows_along(dy, dim) is not None

    def backward(dy: HostArray, saved: Saved, needs: Any, dim: int, dtype: Any) -> HostArray:
        dx = empty_like(saved.out, needs[0])
        _backward(need_view(rows_along(dx, dim)), rows_along(dy, dim), rows_along(saved.out, dim), logarithm)
        return dx

    op.on("cpu", when=_fits, min_elements=MIN_FUSED)(forward)
    op.on_backward("cpu", when=backward_fits, min_elements=MIN_FUSED)(backward)


_register(softmax, logarithm=False)
_register(log_softmax, logarithm=True)


# logsumexp: the logarithm of a sum of exp(x - shift)


@logsumexp.on("cpu", when=r.fits, min_elements=MIN_ELEMENTS)
def logsumexp_cpu(input: HostArray, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    axes = r.axes_of(input, dim)
    shift = r.reduced(r.MAXIMUM, input, axes, float32)
    shift = np.where(np.isinf(shift), np.float32(0), shift)
    total = r.reduced(r.EXPONENTIAL, input, axes, float32, shift=shift)
    found = in_format(np.log(total) + shift, dtype)
    return r.as_result(found, axes, keepdim, input=input, shift=shift, total=total)


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, dim: Any, keepdim: bool) -> bool:
    return hasattr(saved, "total") and supported(dy, saved.input)


@logsumexp.on_backward("cpu", when=_backward_fits)
def logsumexp_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: Any, keepdim: bool) -> Any:
    x, axes = saved.input, r.axes_of(saved.input, dim)
    grad = r.keep_reduced(dy, x, axes) / np.where(saved.total == 0, np.float32(1), saved.total)
    return r.gradient(r.EXPONENTIAL, x, axes, grad, saved.shift, needs[0])
