"""ASGD: gradient descent in ever smaller steps, and the average of where it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import Array
from ..base.limits import NotNegative, Number
from ..base.registry import register_optimizer
from .argument_checks import hyperparameters
from .elementwise import Elementwise, Step
from .flat.arena import Span
from .flat.memory import select_into
from .flat.segment import Segment
from .param_group import ParamGroup


@register_optimizer
class ASGD(Elementwise):
    """p <- (1 - lambd eta) p - eta g; ax <- ax + mu (p - ax); then eta = lr / (1 + lambd lr t)^alpha.

    eta is lr at first; mu is 1, so that the average `ax` of the state is p, up to step t0, and 1 / (t - t0) in step
    t + 1 after. t counts the real steps of each parameter. weight_decay adds weight_decay p to g. maximize=True climbs.
    foreach and capturable change nothing; differentiable=True records it. Computed in float32, float64 for float64
    parameters; what all elements share in float64.
    lambd, alpha: of the falling steps. t0: step from which the weights are averaged.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range.
    Polyak, Juditsky 1992, doi:10.1137/0330046; the falling steps: Xu 2011, arXiv:1107.2490.
    """

    moments = ("ax",)

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-2,
        lambd: NotNegative = 1e-4,
        alpha: NotNegative = 0.75,
        t0: Number = 1e6,
        weight_decay: NotNegative = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
        *,
        stochastic_rounding: bool = False,
    ):
        super().__init__(params, hyperparameters(locals()))

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        eta = step.values["eta"]
        return 1 - step.options["lambd"] * eta, eta, step.values["mu"]

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (average,), (decay_factor, eta, mu) = moments, scalars
        p *= decay_factor
        p -= g * eta
        average[...] = np.where(mu == 1, p, average + (p - average) * mu)

    # eta and mu, two numbers for each parameter, made in one step for the next

    def state_shapes(self, segment: Segment) -> dict[str, tuple[int, ...]]:
        return {**super().state_shapes(segment), "eta": (), "mu": ()}

    def device_values(self, group: ParamGroup, span: Span) -> Mapping[str, Array]:
        segment, begun = span.segments[0], np.greater(span.steps, 0)
        eta, mu = (segment.state_array(name, ()).astype(np.float64) for name in ("eta", "mu"))
        return {**group.device, "eta": np.where(begun, eta, group.device["lr"]), "mu": np.where(begun, mu, 1.0)}

    def update(self, group: ParamGroup, span: Span, all_finite: Array | None) -> None:
        super().update(group, span, all_finite)
        lr, count = group.device["lr"], (span.steps + 1).astype(np.float64)
        eta = lr / np.power(1 + group["lambd"] * lr * count, group["alpha"])
        mu = 1 / np.maximum(1.0, count - group["t0"])
        for segment in span.segments:
            select_into(segment.state_array("eta", ()), eta, all_finite)
            select_into(segment.state_array("mu", ()), mu, all_finite)
