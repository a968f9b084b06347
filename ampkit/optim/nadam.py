"""NAdam: Adam that looks ahead along its momentum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import Array
from .elementwise import Elementwise, Step
from .flat.arena import Run
from .flat.memory import select_into
from .flat.segment import Slot
from .options import need_words
from .param_group import Group


class NAdam(Elementwise):
    """p <- p - lr ((1 - mu_t) / (1 - M_t) g + mu_(t+1) / (1 - M_(t+1)) m) / (sqrt(v / (1 - b2^t)) + eps).

    m and v are Adam's; mu_t = b1 (1 - 0.96^(t momentum_decay) / 2), and M_t, the state's mu_product, is the product of
    mu_1 to mu_t. weight_decay adds weight_decay p to g; with decoupled_weight_decay it shrinks p by lr weight_decay. t
    counts the real steps of each parameter. maximize=True climbs. foreach and capturable change nothing;
    differentiable=True is not here. Computed in float32, float64 for float64 parameters; what all elements share in
    float64.
    stochastic_rounding=True keeps no float32 values of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range.
    Dozat 2016, Incorporating Nesterov Momentum into Adam, ICLR workshop, as PyTorch takes it.
    """

    moments = ("exp_avg", "exp_avg_sq")
    device_keys = ("lr", "betas")
    flags = (*Elementwise.flags, "decoupled_weight_decay")
    from_0 = (*Elementwise.from_0, "momentum_decay")

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        stochastic_rounding: bool = False,
    ):
        need_words("NAdam", differentiable, foreach=foreach, capturable=capturable)
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay}
        options |= {"maximize": maximize, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, {**options, "stochastic_rounding": stochastic_rounding})

    @staticmethod
    def numbers(step: Step) -> Sequence[Any]:
        first, second = step.betas
        now, then = (_momentum(first, step, ahead) for ahead in (1, 2))
        product = step.values["mu_product"] * now
        along, ahead = (1 - now) / (1 - product), then / (1 - product * then)
        lr, root = step.values["lr"], np.sqrt(step.bias(second))
        return lr * along, lr * ahead, root, step.shrink, 1 - first, second, 1 - second, step.options["eps"]

    @staticmethod
    def piece(p: Array, d: Array, moments: Sequence[Any], numbers: Sequence[Any]) -> None:
        (m, v), (along, ahead, root, shrink, new, hold, take, eps) = moments, numbers
        m += (d - m) * new
        v *= hold
        v += d * d * take
        p *= shrink
        p -= (d * along + m * ahead) / (np.sqrt(v) / root + eps)

    # the product of momenta, one number for each parameter

    def state_shapes(self, slot: Slot) -> dict[str, tuple[int, ...]]:
        return {**super().state_shapes(slot), "mu_product": ()}

    def values(self, group: Group, run: Run) -> Mapping[str, Array]:
        slots = run.block.slots[run.first : run.last]
        product = slots[0].factor("mu_product", ()).astype(np.float64)
        return {**group.device, "mu_product": np.where(np.greater(run.steps, 0), product, 1.0)}

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        super().update(group, run, go)
        step = self.given(group, run, go)
        product = step.values["mu_product"] * _momentum(step.betas[0], step, 1)
        for slot in run.block.slots[run.first : run.last]:
            select_into(slot.factor("mu_product", ()), product, go)


def _momentum(first: Array, step: Step, ahead: int) -> Array:
    return first * (1 - 0.5 * np.power(0.96, (step.steps + ahead) * step.options["momentum_decay"]))
