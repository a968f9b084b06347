"""RAdam: Adam whose first steps, too few to know a variance by, go along the mean alone."""

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


def _radam_update(
    master: Array,
    gradient: Array,
    mean: Array,
    square: Array,
    steps: Array,
    lr: Array,
    betas: Array,
    go: Array | None,
    copies: list[Array],
    scratch: list[Array],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> None:
    kind, first, second, count = master.dtype, betas[..., 0], betas[..., 1], steps + 1
    bits, shrink = mask(go, kind), chosen(go, 1 - lr * weight_decay, 1.0, kind)
    new, hold, new_square = (
        chosen(go, value, rest, kind) for value, rest in ((1 - first, 0.0), (second, 1.0), (1 - second, 0.0))
    )
    known, factor = _rectified(second, count)
    rate = (lr * factor / (1 - np.power(first, count))).astype(kind)
    weight, rest = known.astype(kind), np.where(known, eps, 1.0).astype(kind)
    for part in chunks(master.size):
        p, m, v = master[part], mean[part], square[part]
        a, b = scratch[0][: part.stop - part.start], scratch[1][: part.stop - part.start]
        d = keep(direction(p, gradient[part], a, 0 if decoupled else weight_decay, maximize), bits, a)
        np.add(m, np.multiply(np.subtract(d, m, out=b), new, out=b), out=m)
        np.multiply(np.multiply(d, d, out=b), new_square, out=b)
        np.add(np.multiply(v, hold, out=v), b, out=v)
        np.add(np.multiply(np.sqrt(v, out=b), weight, out=b), rest, out=b)  # 1 while the variance is not known
        np.multiply(np.divide(m, b, out=b), rate, out=b)
        if decoupled and weight_decay:
            np.multiply(p, shrink, out=p)
        np.subtract(p, keep(b, bits, b), out=p)
        for copy in copies:
            narrow(p, copy[part])


def _rectified(second: Array, count: Array) -> tuple[Array, Array]:
    """Whether the variance is known, and what its root is to be multiplied with; 1 where it is not. 0-d float64."""
    most, power = 2 / (1 - second) - 1, np.power(second, count)
    length = most - 2 * count * power / (1 - power)
    known = np.greater(length, 5.0)
    safe = np.where(known, length, 6.0)
    ratio = (safe - 4) * (safe - 2) * most / ((most - 4) * (most - 2) * safe)
    return known, np.where(known, np.sqrt(np.where(known, ratio, 1.0) * (1 - power)), 1.0)


# (master, gradient, mean, square, steps, lr, betas, go or None, copies, scratch, options): one pass, in place
radam_update = Primitive("radam_update", "optim", _radam_update)


class RAdam(Optimizer):
    """Adam's step times r(t) where the variance is known from enough steps; before, p <- p - lr m / (1 - b1^t).

    The length of the average is rho = 2 / (1 - b2) - 1 - 2 t b2^t / (1 - b2^t), known above 5. weight_decay adds
    weight_decay p to g; with decoupled_weight_decay it shrinks p by lr weight_decay. t counts the real steps of each
    parameter. maximize=True climbs. foreach and capturable change nothing; differentiable=True is not here. Computed in
    float32, float64 for float64 parameters; r and b^t in float64. Raises ArgumentError for options out of range.
    Liu et al. 2019, arXiv:1908.03265, algorithm 2, with PyTorch's 5 for the paper's 4, and its eps.
    """

    moments = ("exp_avg", "exp_avg_sq")
    device_keys = ("lr", "betas")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ):
        refuse_differentiable("RAdam", differentiable)
        self.decoupled = decoupled_weight_decay
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        need_betas("RAdam", options)

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        radam_update(
            run.master,
            run.gradient,
            run.moment("exp_avg"),
            run.moment("exp_avg_sq"),
            run.steps,
            group.device["lr"],
            group.device["betas"],
            go,
            run.copies,
            run.block.scratch(2),
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            decoupled=self.decoupled,
            maximize=group["maximize"],
        )
