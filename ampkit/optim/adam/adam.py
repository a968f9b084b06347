"""Adam, AdamW and Adamax: step sizes from running moments of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.backends import Array
from ampkit.base.errors import ArgumentError
from ampkit.base.limits import NotNegative, Probability
from ampkit.base.registry import register_optimizer

from ..argument_checks import hyperparameters
from ..elementwise import Elementwise, Step
from ..flat.moments import StateDtype
from ..param_group import ParamGroup


@register_optimizer
class Adam(Elementwise):
    """m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; p <- p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    weight_decay adds weight_decay p to g; decoupled_weight_decay=True is AdamW. t counts the real steps of each
    parameter. amsgrad=True divides by the largest v so far. maximize=True climbs. foreach, fused and capturable,
    PyTorch's choice of implementation, change nothing: every step is one pass over flat memory; differentiable=True
    records it. Computed in float32, float64 for float64 parameters; b^t in float64.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    state_dtype: of the moments, "float32", "bfloat16", "float8" or "int8" (docs/optimizers.md).
    Raises ArgumentError for options out of range.
    Kingma, Ba 2015, arXiv:1412.6980, algorithm 1; Reddi et al. 2018, arXiv:1904.09237, algorithm 2.
    """

    moments = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    non_negative = ("exp_avg_sq", "max_exp_avg_sq")
    device_keys = ("lr", "betas")

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-3,
        betas: tuple[Probability, Probability] = (0.9, 0.999),
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        stochastic_rounding: bool = False,
        state_dtype: StateDtype = "float32",
    ):
        super().__init__(params, hyperparameters(locals()))

    def needs_moment(self, group: ParamGroup, name: str) -> bool:
        return name != "max_exp_avg_sq" or group["amsgrad"]

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        first, second = step.betas
        rate, root = step.values["lr"] / step.bias_correction(first), np.sqrt(step.bias_correction(second))
        take = 1 - second
        return rate, root, step.decay_factor, 1 - first, 1 - take, take, step.options["eps"]

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (m, v, largest), (rate, root, decay_factor, new, hold, take, eps) = moments, scalars
        m += (g - m) * new
        v *= hold
        v += g * g * take
        if largest is not None:
            v = np.maximum(largest, v, out=largest)
        p *= decay_factor
        p -= m / (np.sqrt(v) / root + eps) * rate


@register_optimizer
class AdamW(Adam):
    """Adam whose weight decay is no part of the gradient: p <- (1 - lr weight_decay) p, then Adam's step.

    Loshchilov, Hutter 2019, arXiv:1711.05101, algorithm 2, with the decay proportional to lr, as in PyTorch.
    """

    not_loaded = Adam.not_loaded | {"decoupled_weight_decay"}  # the state of an Adam goes on as AdamW

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-3,
        betas: tuple[Probability, Probability] = (0.9, 0.999),
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        stochastic_rounding: bool = False,
        state_dtype: StateDtype = "float32",
    ):
        # Adam's constructor would only fill in other defaults.
        super(Adam, self).__init__(params, {**hyperparameters(locals()), "decoupled_weight_decay": True})

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        if not options.get("decoupled_weight_decay", True):
            raise ArgumentError("AdamW", "decoupled_weight_decay True", "False", "use Adam")


@register_optimizer
class Adamax(Elementwise):
    """m <- b1 m + (1 - b1) g; u <- max(b2 u, |g| + eps); p <- p - lr / (1 - b1^t) m / u.

    weight_decay adds weight_decay p to g. t counts the real steps of each parameter. maximize=True climbs. foreach and
    capturable change nothing; differentiable=True records it. Computed in float32, float64 for float64 parameters.
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
