"""Adamax: Adam with the largest gradient of late in place of the root mean square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends import Array
from ..base.limits import NotNegative, Probability
from ..base.registry import register_optimizer
from .argument_checks import hyperparameters
from .elementwise import Elementwise, Step


class Adamax(Elementwise):
    """m <- b1 m + (1 - b1) g; u <- max(b2 u, |g| + eps); p <- p - lr / (1 - b1^t) m / u.

    weight_decay adds weight_decay p to g. t counts the real steps of each parameter. maximize=True climbs. foreach and
    capturable change nothing; differentiable=True is refused. Computed in float32, float64 for float64 parameters.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range.
    Kingma, Ba 2015, arXiv:1412.6980, algorithm 2.
    """

    moments = ("exp_avg", "exp_inf")
    device_keys = ("lr", "betas")

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 2e-3,
        betas: tuple[Probability, Probability] = (0.9, 0.999),
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
        stochastic_rounding: bool = False,
    ):
        super().__init__(params, hyperparameters(locals()))

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        first, second = step.betas
        return step.values["lr"] / step.bias_correction(first), 1 - first, second, step.options["eps"]

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (m, largest), (rate, new, hold, eps) = moments, scalars
        m += (g - m) * new
        np.maximum(largest * hold, np.abs(g) + eps, out=largest)
        p -= m / largest * rate


register_optimizer(Adamax)
