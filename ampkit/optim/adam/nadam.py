"""NAdam: Adam that looks ahead along its momentum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ampkit.backends import Array
from ampkit.base.limits import NotNegative, Probability
from ampkit.base.registry import register_optimizer

from ..argument_checks import hyperparameters
from ..elementwise import Elementwise, Step
from ..flat.arena import Span
from ..flat.memory import select_into
from ..flat.moments import StateDtype
from ..flat.segment import Segment
from ..param_group import ParamGroup


@register_optimizer
class NAdam(Elementwise):
    """p <- p - lr ((1 - mu_t) / (1 - M_t) g + mu_(t+1) / (1 - M_(t+1)) m) / (sqrt(v / (1 - b2^t)) + eps).

    m and v are Adam's; mu_t = b1 (1 - 0.96^(t momentum_decay) / 2), and M_t, the state's mu_product, is the product of
    mu_1 to mu_t. weight_decay adds weight_decay p to g; with decoupled_weight_decay it shrinks p by lr weight_decay. t
    counts the real steps of each parameter. maximize=True climbs. foreach and capturable change nothing;
    differentiable=True records it. Computed in float32, float64 for float64 parameters; what all elements share in
    float64.
    momentum_decay: how fast mu_t approaches b1.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    state_dtype: of the moments, "float32", "bfloat16", "float8" or "int8" (docs/optimizers.md).
    Raises ArgumentError for options out of range.
    Dozat 2016, Incorporating Nesterov Momentum into Adam, ICLR workshop, as PyTorch takes it.
    """

    moments = ("exp_avg", "exp_avg_sq")
    non_negative = ("exp_avg_sq",)
    device_keys = ("lr", "betas")

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 2e-3,
        betas: tuple[Probability, Probability] = (0.9, 0.999),
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 0,
        momentum_decay: NotNegative = 4e-3,
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
        now, then = (_momentum(first, step, ahead) for ahead in (1, 2))
        product = step.values["mu_product"] * now
        along, ahead = (1 - now) / (1 - product), then / (1 - product * then)
        lr, root = step.values["lr"], np.sqrt(step.bias_correction(second))
        return lr * along, lr * ahead, root, step.decay_factor, 1 - first, second, 1 - second, step.options["eps"]

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (m, v), (along, ahead, root, decay_factor, new, hold, take, eps) = moments, scalars
        m += (g - m) * new
        v *= hold
        v += g * g * take
        p *= decay_factor
        p -= (g * along + m * ahead) / (np.sqrt(v) / root + eps)

    # the product of momenta, one number for each parameter

    def state_shapes(self, segment: Segment) -> dict[str, tuple[int, ...]]:
        return {**super().state_shapes(segment), "mu_product": ()}

    def device_values(self, group: ParamGroup, span: Span) -> Mapping[str, Array]:
        segments = span.segments
        product = segments[0].state_array("mu_product", ()).astype(np.float64)
        return {**group.device, "mu_product": np.where(np.greater(span.steps, 0), product, 1.0)}

    def update(self, group: ParamGroup, span: Span, all_finite: Array | None) -> None:
        super().update(group, span, all_finite)
        step = self.step_inputs(group, span, all_finite)
        product = step.values["mu_product"] * _momentum(step.betas[0], step, 1)
        for segment in span.segments:
            select_into(segment.state_array("mu_product", ()), product, all_finite)


def _momentum(first: Array, step: Step, ahead: int) -> Array:
    return first * (1 - 0.5 * np.power(0.96, (step.steps + ahead) * step.options["momentum_decay"]))
