"""Lion: steps of one size, in the direction of the sign of a momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends import Array
from ..base.limits import NotNegative, Probability
from ..base.registry import register_optimizer
from .argument_checks import hyperparameters
from .elementwise import Elementwise, Step
from .flat.moments import StateDtype


@register_optimizer
class Lion(Elementwise):
    """p <- (1 - lr weight_decay) p - lr sign(b1 m + (1 - b1) g); m <- b2 m + (1 - b2) g.

    Every element moves by lr, so lr is 3 to 10 times smaller than AdamW's, and weight_decay as much larger (section 5
    of the paper). maximize=True climbs. One moment per weight; its state has no step. Computed in float32, float64 for
    float64 parameters.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    state_dtype: of the moments, "float32", "bfloat16", "float8" or "int8" (docs/optimizers.md).
    Raises ArgumentError for options out of range.
    Chen et al. 2023, arXiv:2302.06675, algorithm 2.
    """

    moments = ("exp_avg",)
    device_keys = ("lr", "betas")
    counts_steps = False
    decoupled = True

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-4,
        betas: tuple[Probability, Probability] = (0.9, 0.99),
        weight_decay: NotNegative = 0.0,
        *,
        maximize: bool = False,
        stochastic_rounding: bool = False,
        state_dtype: StateDtype = "float32",
    ):
        super().__init__(params, hyperparameters(locals()))

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        first, second = step.betas
        return step.values["lr"], step.decay_factor, 1 - first, 1 - second

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (m,), (rate, decay_factor, ahead, new) = moments, scalars
        p *= decay_factor
        p -= np.sign(m + (g - m) * ahead) * rate
        m += (g - m) * new
