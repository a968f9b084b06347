"""Elementwise losses: a function of elementwise.cu, and its reduction.

One launch computes the loss of each element in float32, one or two more sum them. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ampkit.backends.cuda.launch import elementwise
from ampkit.backends.cuda.launch.reduction import Finish, reduced
from ampkit.base.dtypes import DType, float32

Array = Any


def forward(name: str, operands: Sequence[Any], reduction: str, dtype: DType) -> Any:
    """The loss `name` of operands that broadcast to the first one's shape, reduced by `reduction`, in `dtype`.

    Returns NotImplemented for dtypes and layouts that the kernels do not take.
    """
    if reduction == "none":
        return elementwise.forward(name, operands, dtype)
    losses = elementwise.forward(name, operands, float32)
    if losses is NotImplemented:
        return NotImplemented
    return reduced("Add", losses, None, False, dtype, Finish(_divisor(reduction, losses.shape)))


def backward(
    name: str, dy: Array, operands: Sequence[Any], dtypes: Sequence[DType | None], reduction: str, weight: Any = None
) -> Any:
    """The gradients of the first operands, in `dtypes`, None where that is None.

    weight: the factor of each element's loss, or None.
    """
    divisor = _divisor(reduction, operands[0].shape)
    if divisor != 1 or weight is not None:
        dy = elementwise.forward("AddCMul", (0.0, dy, 1.0 if weight is None else weight, 1 / divisor), float32)
        if dy is NotImplemented:
            return NotImplemented
    return elementwise.backward(name, dy, operands, dtypes)


def _divisor(reduction: str, shape: tuple[int, ...]) -> int:
    """What a mean divides the sum by, at least 1; 1 for a sum."""
    return max(1, prod(shape) if reduction == "mean" else (*shape, 1)[0] if reduction == "batchmean" else 1)
