"""CUDA kernels of mse_loss, l1_loss, smooth_l1_loss, huber_loss and kl_div; see elementwise_loss.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.loss import regression as ops

from ..pointwise.registration import supports, supports_backward
from . import elementwise_loss

Array = Any
Chooser = Callable[..., tuple[str, tuple[float, ...]]]  # the op's parameters -> function name, scalars


def _register(op: Any, choose: Chooser) -> None:
    """Register forward and backward of a loss of input and target of one shape."""

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


_register(ops.mse_loss, lambda: ("MSELoss", ()))
_register(ops.l1_loss, lambda: ("L1Loss", ()))
_register(ops.smooth_l1_loss, lambda beta: ("SmoothL1Loss", (beta,)))
_register(ops.huber_loss, lambda delta: ("HuberLoss", (delta,)))
_register(ops.kl_div, lambda log_target: ("KLDivOfLogs" if log_target else "KLDiv", ()))
