"""RMSprop: the gradient over a running root mean square of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends import Array
from ..base.limits import NotNegative, Probability
from ..base.registry import register_optimizer
from .argument_checks import hyperparameters
from .elementwise import Elementwise, Step, has_momentum
from .flat.moments import StateDtype
from .param_group import ParamGroup


class RMSprop(Elementwise):
    """v <- alpha v + (1 - alpha) g^2; b <- momentum b + g / (sqrt(v) + eps); p <- p - lr b.

    centered=True takes the variance, v - m^2 with m the running mean of g, in place of v; it is never below 0, which
    rounding makes of it in PyTorch. weight_decay adds weight_decay p to g. maximize=True climbs. foreach and capturable
    change nothing; differentiable=True records it. Computed in float32, float64 for float64 parameters.
    alpha: decay rate of the running means. centered: divide by the standard deviation of the gradient.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    state_dtype: of the moments, "float32", "bfloat16", "float8" or "int8" (docs/optimizers.md).
    Raises ArgumentError for options out of range.
    Hinton, Srivastava, Swersky 2012, Neural Networks for Machine Learning, lecture 6e; Graves 2013,
    arXiv:1308.0850, eq. 38-45, for the variance, with eps outside of the root, as in PyTorch.
    """

    moments = ("square_avg", "momentum_buffer", "grad_avg")
    non_negative = ("square_avg",)
    device_keys = ("lr", "momentum")

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-2,
        alpha: NotNegative = 0.99,
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 0,
        momentum: NotNegative = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        *,
        stochastic_rounding: bool = False,
        state_dtype: StateDtype = "float32",
    ):
        super().__init__(params, hyperparameters(locals()))

    def needs_moment(self, group: ParamGroup, name: str) -> bool:
        return {"square_avg": True, "momentum_buffer": has_momentum(group), "grad_avg": group["centered"]}[name]

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        alpha = step.options["alpha"]
        return step.values["lr"], step.values["momentum"], alpha, 1 - alpha, step.options["eps"]

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (v, buffer, m), (rate, push, hold, take, eps) = moments, scalars
        v *= hold
        v += g * g * take
        var = v
        if m is not None:
            m += (g - m) * take
            var = np.maximum(v - m * m, 0)  # rounding alone makes it negative
        move = g / (np.sqrt(var) + eps)
        if buffer is not None:
            buffer *= push
            buffer += move
            move = buffer
        p -= move * rate


register_optimizer(RMSprop, types={"alpha": Probability})
