"""ASGD: gradient descent in ever smaller steps, and the average of where it went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import Array
from .elementwise import Elementwise, Step
from .flat.arena import Run
from .flat.memory import select_into
from .flat.segment import Slot
from .options import need, need_words
from .param_group import Group


class ASGD(Elementwise):
    """p <- (1 - lambd eta) p - eta g; ax <- ax + mu (p - ax); then eta = lr / (1 + lambd lr t)^alpha.

    eta is lr at first; mu is 1, so that the average `ax` of the state is p, up to step t0, and 1 / (t - t0) in step
    t + 1 after. t counts the real steps of each parameter. weight_decay adds weight_decay p to g. maximize=True climbs.
    foreach and capturable change nothing; differentiable=True is not here. Computed in float32, float64 for float64
    parameters; what all elements share in float64.
    stochastic_rounding=True keeps no float32 values of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range.
    Polyak, Juditsky 1992, doi:10.1137/0330046; the falling steps: Xu 2011, arXiv:1107.2490.
    """

    moments = ("ax",)
    from_0 = (*Elementwise.from_0, "lambd", "alpha")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
        *,
        stochastic_rounding: bool = False,
    ):
        need_words("ASGD", differentiable, foreach=foreach, capturable=capturable)
        options = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize, "stochastic_rounding": stochastic_rounding})

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        need("ASGD", options, "t0", low=-math.inf)

    @staticmethod
    def numbers(step: Step) -> Sequence[Any]:
        eta = step.values["eta"]
        return 1 - step.options["lambd"] * eta, eta, step.values["mu"]

    @staticmethod
    def piece(p: Array, d: Array, moments: Sequence[Any], numbers: Sequence[Any]) -> None:
        (average,), (shrink, eta, mu) = moments, numbers
        p *= shrink
        p -= d * eta
        average[...] = np.where(mu == 1, p, average + (p - average) * mu)

    # eta and mu, two numbers for each parameter, made in one step for the next

    def state_shapes(self, slot: Slot) -> dict[str, tuple[int, ...]]:
        return {**super().state_shapes(slot), "eta": (), "mu": ()}

    def values(self, group: Group, run: Run) -> Mapping[str, Array]:
        slot, begun = run.block.slots[run.first], np.greater(run.steps, 0)
        eta, mu = (slot.factor(name, ()).astype(np.float64) for name in ("eta", "mu"))
        return {**group.device, "eta": np.where(begun, eta, group.device["lr"]), "mu": np.where(begun, mu, 1.0)}

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        super().update(group, run, go)
        lr, count = group.device["lr"], (run.steps + 1).astype(np.float64)
        eta = lr / np.power(1 + group["lambd"] * lr * count, group["alpha"])
        mu = 1 / np.maximum(1.0, count - group["t0"])
        for slot in run.block.slots[run.first : run.last]:
            select_into(slot.factor("eta", ()), eta, go)
            select_into(slot.factor("mu", ()), mu, go)
