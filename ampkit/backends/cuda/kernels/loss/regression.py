"""Kernels of losses that compare a prediction with a target: see totals.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.loss import regression as ops

from ..pointwise.registration import supports, supports_backward
from . import elementwise_loss

Array = Any
Chooser = Callable[..., tuple[str, tuple[float, ...]]]  # parameters but the reduction -> a function's name, its numbers


def _compared(op: Any, choose: Chooser) -> None:
    def kernel(input: Array, target: Array, reduction: str, *params: Any, dtype: DType, **more: Any) -> Any:
        name, numbers = choose(*params, *more.values())
        out = elementwise_loss.forward(name, (input, target, *numbers), reduction, dtype)
        return out if out is NotImplemented else (out, Saved(input=input, target=target))

    def backward(dy: Array, saved: Any, needs: Any, reduction: str, **params: Any) -> Any:
        name, numbers = choose(*params.values())
        return elementwise_loss.backward(name, dy, (saved.input, saved.target, *numbers), needs, reduction)

    kernel.__name__, backward.__name__ = f"{op.name}_cuda", f"{op.name}_backward_cuda"
    op.on("cuda", when=supports)(kernel)
    op.on_backward("cuda", when=supports_backward)(backward)


_compared(ops.mse_loss, lambda: ("MSELoss", ()))
_compared(ops.l1_loss, lambda: ("L1Loss", ()))
_compared(ops.smooth_l1_loss, lambda beta: ("SmoothL1Loss", (beta,)))
_compared(ops.huber_loss, lambda delta: ("HuberLoss", (delta,)))
_compared(ops.kl_div, lambda log_target: ("KLDivOfLogs" if log_target else "KLDiv", ()))
