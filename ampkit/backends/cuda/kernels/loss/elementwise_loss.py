"""Losses of elements: a map of elementwise.cu, and what it comes to over all of them.

A launch for the elements in float32, and one or two that add them up. Not yet run on a GPU.
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
    """The loss `name` of operands, the first of which has the shape of all: for each element, their sum or a mean.

    NotImplemented for arrays that no kernel is for.
    """
    if reduction == "none":
        return elementwise.forward(name, operands, dtype)
    each = elementwise.forward(name, operands, float32)
    if each is NotImplemented:
        return NotImplemented
    return reduced("Add", each, None, False, dtype, Finish(_share(reduction, each.shape)))


def backward(
    name: str, dy: Array, operands: Sequence[Any], dtypes: Sequence[DType | None], reduction: str, weight: Any = None
) -> Any:
    """The gradients of `forward` with respect to the first operands.

    weight: what the loss of each element was multiplied by.
    """
    share = _share(reduction, operands[0].shape)
    if share != 1 or weight is not None:
        dy = elementwise.forward("AddCMul", (0.0, dy, 1.0 if weight is None else weight, 1 / share), float32)
        if dy is NotImplemented:
            return NotImplemented
    return elementwise.backward(name, dy, operands, dtypes)


def _share(reduction: str, shape: tuple[int, ...]) -> int:
    # How many losses share one number's gradient; of none, none.
    return max(1, prod(shape) if reduction == "mean" else (*shape, 1)[0] if reduction == "batchmean" else 1)
