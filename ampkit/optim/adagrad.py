"""Adagrad: step sizes from all gradients so far."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arena import Run
from ..backends import Array
from ..core.primitive import Primitive
from ..flat import chosen, chunks, keep, mask, narrow
from .given import refuse_differentiable
from .group import Group, need
from .optimizer import Optimizer
from .sgd import direction


def _adagrad_update(
    master: Array,
    gradient: Array,
    total: Array,
    steps: Array,
    lr: Array,
    go: Array | None,
    copies: list[Array],
    scratch: list[Array],
    lr_decay: float,
    eps: float,
    weight_decay: float,
    initial: float,
    maximize: bool,
) -> None:
    kind = master.dtype
    bits, rate = mask(go, kind), (lr / (1 + steps * lr_decay)).astype(kind)
    hold = np.where(steps == 0, chosen(go, 0.0, 1.0, kind), 1.0).astype(kind)  # a total starts at `initial`
    start = np.where(steps == 0, chosen(go, initial, 0.0, kind), 0.0).astype(kind)
    for part in chunks(master.size):
        p, s = master[part], total[part]
        a, b = scratch[0][: part.stop - part.start], scratch[1][: part.stop - part.start]
        d = keep(direction(p, gradient[part], a, weight_decay, maximize), bits, a)
        if initial:
            np.add(np.multiply(s, hold, out=s), start, out=s)
        np.add(s, np.multiply(d, d, out=b), out=s)
        np.add(np.sqrt(s, out=b), eps, out=b)
        np.multiply(np.divide(d, b, out=b), rate, out=b)
        np.subtract(p, keep(b, bits, b), out=p)
        for copy in copies:
            narrow(p, copy[part])


# (master, gradient, sum of squares, steps, lr, go or None, copies, scratch, options): one pass, in place
adagrad_update = Primitive("adagrad_update", "optim", _adagrad_update)


class Adagrad(Optimizer):
    """s <- s + g^2; p <- p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps), s from initial_accumulator_value on.

    weight_decay adds weight_decay p to g. t counts the real steps of each parameter. maximize=True climbs. foreach and
    fused change nothing; differentiable=True is not here. Computed in float32, float64 for float64 parameters.
    Raises ArgumentError for options out of range.
    Duchi, Hazan, Singer 2011, JMLR 12, algorithm 1 with diagonal matrices.
    """

    moments = ("sum",)

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
    ):
        refuse_differentiable("Adagrad", differentiable)
        options = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
        start = {"initial_accumulator_value": initial_accumulator_value}
        super().__init__(params, {**options, **start, "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        need("Adagrad", options, "lr_decay")
        need("Adagrad", options, "initial_accumulator_value")

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        adagrad_update(
            run.master,
            run.gradient,
            run.moment("sum"),
            run.steps,
            group.device["lr"],
            go,
            run.copies,
            run.block.scratch(2),
            lr_decay=group["lr_decay"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            initial=group["initial_accumulator_value"],
            maximize=group["maximize"],
        )
