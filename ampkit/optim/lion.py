"""Lion: steps of one size, in the direction of the sign of a momentum."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arena import Run
from ..backends import Array
from ..core.primitive import Primitive
from ..flat import chosen, chunks, keep, mask, narrow
from .group import Group, need_betas
from .optimizer import Optimizer
from .sgd import direction


def _lion_update(
    master: Array,
    gradient: Array,
    mean: Array,
    lr: Array,
    betas: Array,
    go: Array | None,
    copies: list[Array],
    scratch: list[Array],
    weight_decay: float,
    maximize: bool,
) -> None:
    kind = master.dtype
    bits, rate = mask(go, kind), lr.astype(kind)
    shrink = chosen(go, 1 - lr * weight_decay, 1.0, kind)
    ahead, new = (1 - betas[..., 0]).astype(kind), chosen(go, 1 - betas[..., 1], 0.0, kind)
    for part in chunks(master.size):
        p, m = master[part], mean[part]
        a, b = scratch[0][: part.stop - part.start], scratch[1][: part.stop - part.start]
        d = keep(direction(p, gradient[part], a, 0, maximize), bits, a)
        np.subtract(d, m, out=a)
        np.sign(np.add(m, np.multiply(a, ahead, out=b), out=b), out=b)
        np.add(m, np.multiply(a, new, out=a), out=m)
        if weight_decay:
            np.multiply(p, shrink, out=p)
        np.subtract(p, keep(np.multiply(b, rate, out=b), bits, b), out=p)
        for copy in copies:
            narrow(p, copy[part])


# (master, gradient, mean, lr, betas, go or None, copies, scratch, options): one pass, in place
lion_update = Primitive("lion_update", "optim", _lion_update)


class Lion(Optimizer):
    """p <- (1 - lr weight_decay) p - lr sign(b1 m + (1 - b1) g); m <- b2 m + (1 - b2) g.

    Every element moves by lr, so lr is 3 to 10 times smaller than AdamW's, and weight_decay as much larger (section 5
    of the paper). maximize=True climbs. One moment per weight; its state has no step. Computed in float32, float64 for
    float64 parameters. Raises ArgumentError for options out of range.
    Chen et al. 2023, arXiv:2302.06675, algorithm 2.
    """

    moments = ("exp_avg",)
    device_keys = ("lr", "betas")
    counts_steps = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ):
        options = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        need_betas("Lion", options)

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        lion_update(
            run.master,
            run.gradient,
            run.moment("exp_avg"),
            group.device["lr"],
            group.device["betas"],
            go,
            run.copies,
            run.block.scratch(2),
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
        )
