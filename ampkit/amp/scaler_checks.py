"""Checks of what a GradScaler is called with, and their errors."""

from __future__ import annotations

from typing import Any

from ..base.errors import ArgumentError, DTypeError, StateError
from ..core.tensor import Tensor
from ..optim.argument_checks import to_python
from ..optim.optimizer import Optimizer


def need_loss(loss: Tensor) -> None:
    """Raise DTypeError unless the loss is floating-point, StateError if it is scaled already."""
    if not loss.is_floating_point():
        raise DTypeError("scaler.scale", "a floating-point loss", loss.dtype.name)
    if (node := loss._tape_node) is not None and node.tag is not None:
        raise StateError("scaler.scale", "a loss that is not scaled yet", "one that is")


def refuse_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise StateError for a closure, ArgumentError for other arguments of `scaler.step` but None."""
    if not args and not kwargs:
        return
    passed = [item for item in (*args, *kwargs.values()) if item is not None]
    if any(callable(item) for item in passed):
        cure = "compute the loss and call backward before scaler.step(optimizer)"
        raise StateError("Closure use is not currently supported if GradScaler is enabled.", cure=cure)
    if passed:
        raise ArgumentError("scaler.step", "an optimizer alone", f"{len(passed)} arguments more")


def scale_number(value: Any) -> Any:
    """A new scale as a number. Raises ArgumentError for a Tensor of several elements, or one that requires grad."""
    if isinstance(value, Tensor) and (value.numel() != 1 or value.requires_grad):
        raise ArgumentError("scaler.update", "a scale of one element that requires no grad", repr(value))
    return value.item() if isinstance(value, Tensor) else to_python(value)


def no_gradients(optimizer: Optimizer) -> StateError:
    """The error for an optimizer without any gradient."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    frozen = sum(1 for p in parameters if not p.requires_grad)
    cure = (
        f"none of its {len(parameters)} parameters has a gradient, and {frozen} of them require none: "
        "was backward called since zero_grad, does the loss depend on them, or was it detached?"
    )
    return StateError("No inf checks were recorded for this optimizer.", cure=cure)
