"""Adagrad: step sizes from all gradients so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends import Array
from .elementwise import Elementwise, Step
from .options import need_words


class Adagrad(Elementwise):
    """s <- s + g^2; p <- p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps), s from initial_accumulator_value on.

    weight_decay adds weight_decay p to g. t counts the real steps of each parameter. maximize=True climbs. foreach and
    fused change nothing; differentiable=True is not here. Computed in float32, float64 for float64 parameters.
    stochastic_rounding=True keeps no float32 values of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range.
    Duchi, Hazan, Singer 2011, JMLR 12, algorithm 1 with diagonal matrices.
    """

    moments = ("sum",)
    from_0 = (*Elementwise.from_0, "lr_decay", "initial_accumulator_value")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        stochastic_rounding: bool = False,
    ):
        need_words("Adagrad", differentiable, foreach=foreach, fused=fused)
        options = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
        start = {"initial_accumulator_value": initial_accumulator_value}
        super().__init__(params, {**options, **start, "maximize": maximize, "stochastic_rounding": stochastic_rounding})

    @staticmethod
    def numbers(step: Step) -> Sequence[Any]:
        begun, start = np.greater(step.steps, 0), step.options["initial_accumulator_value"]
        rate = step.values["lr"] / (1 + step.steps * step.options["lr_decay"])
        return rate, np.where(begun, 0.0, start), step.options["eps"]  # the sum begins at `start`

    @staticmethod
    def piece(p: Array, d: Array, moments: Sequence[Any], numbers: Sequence[Any]) -> None:
        (total,), (rate, start, eps) = moments, numbers
        total += start
        total += d * d
        p -= d / (np.sqrt(total) + eps) * rate
