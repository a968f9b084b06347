"""CUDA kernels of pointwise ops: the functions of kernels/shared/functions.h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampkit.backends.cuda.launch import elementwise
from ampkit.backends.cuda.launch.reduction import Finish, reduced
from ampkit.base.dtypes import DType, float32
from ampkit.kernels.shared.launcher import Launcher
from ampkit.kernels.shared.pointwise import register_pointwise


def _total(function: str, operands: Sequence[Any], divisor: float, dtype: DType) -> Any:
    """One launch computes the values in float32, one or two more sum them."""
    values = elementwise.forward(function, operands, float32)
    return reduced("Add", values, None, False, dtype, Finish(divisor))


def _sum_over(array: Any, axes: tuple[int, ...]) -> Any:
    return reduced("Add", array, list(axes), False, float32)


LAUNCHER = Launcher("cuda", elementwise.forward, elementwise.backward, _total, _sum_over, reductions_wait=True)
register_pointwise(LAUNCHER)
