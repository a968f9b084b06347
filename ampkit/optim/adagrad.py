"""Adagrad: step sizes from all gradients so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends import Array
from ..base.limits import NotNegative
from ..base.registry import register_optimizer
from .argument_checks import hyperparameters
from .elementwise import Elementwise, Step


@register_optimizer
class Adagrad(Elementwise):
    """s <- s + g^2; p <- p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps), s from initial_accumulator_value on.

    weight_decay adds weight_decay p to g. t counts the real steps of each parameter. maximize=True climbs. foreach and
    fused change nothing; differentiable=True records it. Computed in float32, float64 for float64 parameters.
    lr_decay: in step t, lr is divided by 1 + (t - 1) lr_decay. initial_accumulator_value: of the sum of squares.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range.
    Duchi, Hazan, Singer 2011, JMLR 12, algorithm 1 with diagonal matrices.
    """

    moments = ("sum",)

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-2,
        lr_decay: NotNegative = 0,
        weight_decay: NotNegative = 0,
        initial_accumulator_value: NotNegative = 0,
        eps: NotNegative = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        stochastic_rounding: bool = False,
    ):
        super().__init__(params, hyperparameters(locals()))

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        begun, start = np.greater(step.steps, 0), step.options["initial_accumulator_value"]
        rate = step.values["lr"] / (1 + step.steps * step.options["lr_decay"])
        return rate, np.where(begun, 0.0, start), step.options["eps"]  # the sum begins at `start`

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (total,), (rate, start, eps) = moments, scalars
        total += start
        total += g * g
        p -= g / (np.sqrt(total) + eps) * rate
