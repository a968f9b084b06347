"""`torch.amp.grad_scaler`: the stages of an optimizer between two steps, which libraries import."""

from enum import Enum

__all__ = ["OptState"]


class OptState(Enum):
    """What a scaler has done with the gradients of an optimizer."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2
