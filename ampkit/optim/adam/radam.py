"""RAdam: Adam whose first steps, too few to know a variance by, go along the mean alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.backends import Array
from ampkit.base.limits import NotNegative, Probability
from ampkit.base.registry import register_optimizer

from ..argument_checks import hyperparameters
from ..elementwise import Elementwise, Step
from ..flat.moments import StateDtype


@register_optimizer
class RAdam(Elementwise):
    """Adam's step times r(t) where the variance is known from enough steps; before, p <- p - lr m / (1 - b1^t).

    The length of the average is rho = 2 / (1 - b2) - 1 - 2 t b2^t / (1 - b2^t), known above 5. weight_decay adds
    weight_decay p to g; with decoupled_weight_decay it shrinks p by lr weight_decay. t counts the real steps of each
    parameter. maximize=True climbs. foreach and capturable change nothing; differentiable=True records it. Computed in
    float32, float64 for float64 parameters; r and b^t in float64.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    state_dtype: of the moments, "float32", "bfloat16", "float8" or "int8" (docs/optimizers.md).
    Raises ArgumentError for options out of range.
    Liu et al. 2019, arXiv:1908.03265, algorithm 2, with PyTorch's 5 for the paper's 4, and its eps.
    """

    moments = ("exp_avg", "exp_avg_sq")
    non_negative = ("exp_avg_sq",)
    device_keys = ("lr", "betas")

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-3,
        betas: tuple[Probability, Probability] = (0.9, 0.999),
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        stochastic_rounding: bool = False,
        state_dtype: StateDtype = "float32",
    ):
        super().__init__(params, hyperparameters(locals()))

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        first, second = step.betas
        known, factor = _rectified(second, step.steps + 1)
        rate = step.values["lr"] * factor / step.bias_correction(first)
        rest = np.where(known, step.options["eps"], 1.0)
        return rate, step.decay_factor, 1 - first, second, 1 - second, np.where(known, 1.0, 0.0), rest

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (m, v), (rate, decay_factor, new, hold, take, known, rest) = moments, scalars
        m += (g - m) * new
        v *= hold
        v += g * g * take
        p *= decay_factor
        p -= m / (np.sqrt(v) * known + rest) * rate  # over 1 while the variance is not known


def _rectified(second: Array, count: Array) -> tuple[Array, Array]:
    """Whether the variance is known, and what its root is to be multiplied with; 1 where it is not. 0-d float64."""
    most, power = 2 / (1 - second) - 1, np.power(second, count)
    length = most - 2 * count * power / (1 - power)
    known = np.greater(length, 5.0)
    safe = np.where(known, length, 6.0)
    ratio = (safe - 4) * (safe - 2) * most / ((most - 4) * (most - 2) * safe)
    return known, np.where(known, np.sqrt(np.where(known, ratio, 1.0) * (1 - power)), 1.0)
