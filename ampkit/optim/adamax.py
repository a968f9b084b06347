"""Adamax: Adam with the largest gradient of late in place of the root mean square."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arena import Run
from ..backends import Array
from ..core.primitive import Primitive
from ..flat import chosen, chunks, keep, mask, narrow
from .given import refuse_differentiable
from .group import Group, need_betas
from .optimizer import Optimizer
from .sgd import direction


def _adamax_update(
    master: Array,
    gradient: Array,
    mean: Array,
    largest: Array,
    steps: Array,
    lr: Array,
    betas: Array,
    go: Array | None,
    copies: list[Array],
    scratch: list[Array],
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    kind, first = master.dtype, betas[..., 0]
    bits, rate = mask(go, kind), (lr / (1 - np.power(first, steps + 1))).astype(kind)
    new, hold = chosen(go, 1 - first, 0.0, kind), chosen(go, betas[..., 1], 1.0, kind)
    for part in chunks(master.size):
        p, m, u = master[part], mean[part], largest[part]
        a, b = scratch[0][: part.stop - part.start], scratch[1][: part.stop - part.start]
        d = keep(direction(p, gradient[part], a, weight_decay, maximize), bits, a)
        np.add(m, np.multiply(np.subtract(d, m, out=b), new, out=b), out=m)
        size = keep(np.add(np.abs(d, out=b), eps, out=b), bits, b)
        np.maximum(np.multiply(u, hold, out=u), size, out=u)
        np.multiply(np.divide(m, u, out=b), rate, out=b)
        np.subtract(p, keep(b, bits, b), out=p)
        for copy in copies:
            narrow(p, copy[part])


# (master, gradient, mean, largest, steps, lr, betas, go or None, copies, scratch, options): one pass, in place
adamax_update = Primitive("adamax_update", "optim", _adamax_update)


class Adamax(Optimizer):
    """m <- b1 m + (1 - b1) g; u <- max(b2 u, |g| + eps); p <- p - lr / (1 - b1^t) m / u.

    weight_decay adds weight_decay p to g. t counts the real steps of each parameter. maximize=True climbs. foreach and
    capturable change nothing; differentiable=True is not here. Computed in float32, float64 for float64 parameters.
    Raises ArgumentError for options out of range.
    Kingma, Ba 2015, arXiv:1412.6980, algorithm 2.
    """

    moments = ("exp_avg", "exp_inf")
    device_keys = ("lr", "betas")

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ):
        refuse_differentiable("Adamax", differentiable)
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        need_betas("Adamax", options)

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        adamax_update(
            run.master,
            run.gradient,
            run.moment("exp_avg"),
            run.moment("exp_inf"),
            run.steps,
            group.device["lr"],
            group.device["betas"],
            go,
            run.copies,
            run.block.scratch(2),
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
        )
