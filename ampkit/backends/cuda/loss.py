"""Bodies of losses that compare a prediction with a target: see totals.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.dtypes import DType
from ...core.saved import Saved
from ...ops import loss as ops
from . import totals
from .mapped import back_fits, fits

Array = Any
Chooser = Callable[..., tuple[str, tuple[float, ...]]]  # parameters but the reduction -> a function's name, its numbers


def _compared(op: Any, choose: Chooser) -> None:
    def body(input: Array, target: Array, reduction: str, *params: Any, dtype: DType, **more: Any) -> Any:
        name, numbers = choose(*params, *more.values())
        out = totals.forward(name, (input, target, *numbers), reduction, dtype)
        return out if out is NotImplemented else (out, Saved(input=input, target=target))

    def backward(dy: Array, saved: Any, needs: Any, reduction: str, **params: Any) -> Any:
        name, numbers = choose(*params.values())
        return totals.backward(name, dy, (saved.input, saved.target, *numbers), needs, reduction)

    body.__name__, backward.__name__ = f"{op.name}_cuda", f"{op.name}_backward_cuda"
    op.on("cuda", when=fits)(body)
    op.backward_primitive.on("cuda", when=back_fits)(backward)


_compared(ops.mse_loss, lambda: ("MSELoss", ()))
_compared(ops.l1_loss, lambda: ("L1Loss", ()))
_compared(ops.smooth_l1_loss, lambda beta: ("SmoothL1Loss", (beta,)))
_compared(ops.huber_loss, lambda delta: ("HuberLoss", (delta,)))
_compared(ops.kl_div, lambda log_target: ("KLDivOfLogs" if log_target else "KLDiv", ()))
