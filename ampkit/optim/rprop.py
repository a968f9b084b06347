"""Rprop: a step size for each weight, that grows while its gradient keeps its sign."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends import Array
from ..base.errors import ArgumentError
from ..base.limits import AboveOne, Fraction, NotNegative, Positive
from ..base.registry import register_optimizer
from .argument_checks import hyperparameters
from .elementwise import Elementwise, Step


class Rprop(Elementwise):
    """s <- s times etas[1] where g keeps the sign it had, times etas[0] where it turns; p <- p - s sign(g).

    s, from lr on, stays within step_sizes; where the sign turned, the weight rests for a step. For whole batches: the
    gradients of small ones turn without need. maximize=True climbs. foreach and capturable change nothing;
    differentiable=True records it. Computed in float32, float64 for float64 parameters.
    etas: factors of the step size where the sign turned and where it stayed. step_sizes: the smallest and the largest.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range.
    Riedmiller, Braun 1993, ICNN; the variant Rprop- that forgets a gradient that turned: Igel, Hüsken 2000.
    """

    moments = ("prev", "step_size")

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-2,
        etas: tuple[Fraction, AboveOne] = (0.5, 1.2),
        step_sizes: tuple[NotNegative, NotNegative] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        stochastic_rounding: bool = False,
    ):
        super().__init__(params, hyperparameters(locals()))

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        low, high = options.get("step_sizes", (0.0, 0.0))
        if low > high:
            raise ArgumentError("Rprop", "step_sizes[0] <= step_sizes[1]", repr(options["step_sizes"]))

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        begun = np.greater(step.steps, 0)
        start, kept = np.where(begun, 0.0, step.values["lr"]), np.where(begun, 1.0, 0.0)
        return start, kept, *step.options["etas"], *step.options["step_sizes"]

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (before, size), (start, kept, less, more, low, high) = moments, scalars
        size *= kept
        size += start  # lr at first
        side = np.sign(before * g)
        grown = size * np.where(side > 0, more, np.where(side < 0, less, 1.0)).astype(size.dtype)
        np.minimum(np.maximum(grown, low), high, out=size)
        before[...] = np.where(side < 0, 0.0, g)
        p -= np.sign(before) * size


register_optimizer(Rprop, types={"step_sizes": tuple[NotNegative, Positive]})
