"""Adadelta: the gradient in units of the weights, from running means of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends import Array
from ..base.limits import NotNegative, UnitInterval
from ..base.registry import register_optimizer
from .argument_checks import hyperparameters
from .elementwise import Elementwise, Step


@register_optimizer
class Adadelta(Elementwise):
    """v <- rho v + (1 - rho) g^2; u <- sqrt(a + eps) / sqrt(v + eps) g; a <- rho a + (1 - rho) u^2; p <- p - lr u.

    weight_decay adds weight_decay p to g. maximize=True climbs. foreach and capturable change nothing;
    differentiable=True records it. Computed in float32, float64 for float64 parameters.
    rho: decay rate of the running means.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range.
    Zeiler 2012, arXiv:1212.5701, algorithm 1.
    """

    moments = ("square_avg", "acc_delta")

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1.0,
        rho: UnitInterval = 0.9,
        eps: NotNegative = 1e-6,
        weight_decay: NotNegative = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
        stochastic_rounding: bool = False,
    ):
        super().__init__(params, hyperparameters(locals()))

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        return step.values["lr"], step.options["rho"], 1 - step.options["rho"], step.options["eps"]

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (v, moved), (rate, hold, take, eps) = moments, scalars
        v *= hold
        v += g * g * take
        move = np.sqrt(moved + eps) / np.sqrt(v + eps) * g
        moved *= hold
        moved += move * move * take
        p -= move * rate
