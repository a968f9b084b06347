"""CPU kernels of softmax and log_softmax (softmax.cpp), and of logsumexp, which is two reductions."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.native.arrays import (
    MIN_FUSED,
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
from ampkit.kernels.shared.reduction import register_logsumexp
from ampkit.ops.nn.softmax import log_softmax, softmax

from ..pointwise import LAUNCHER
from ..reduction.reductions import fits, reduced

if available():
    register_logsumexp(LAUNCHER, reduced, fits)

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
