"""Adam and AdamW: step sizes from running moments of the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arena import Run
from ..backends import Array
from ..core.primitive import Primitive
from ..flat import chunks, keep, mask, narrow
from .given import refuse_differentiable
from .group import Group, need_betas
from .optimizer import Optimizer
from .sgd import direction


def _adam_update(
    master: Array,
    gradient: Array,
    mean: Array,
    square: Array,
    largest: Array | None,
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
    kind = master.dtype
    bits, real = mask(go, kind), 1 if go is None else go
    first, second = betas[..., 0], betas[..., 1]
    count = steps + 1  # np.power: a 0-d exponent after ** is read by older NumPy, on the host
    rate = (lr / (1 - np.power(first, count))).astype(kind)
    root = np.sqrt(1 - np.power(second, count)).astype(kind)
    shrink = (1 - lr * weight_decay * real).astype(kind)
    new, old_square = ((1 - first) * real).astype(kind), (1 - (1 - second) * real).astype(kind)
    new_square = (1 - second).astype(kind)  # of a gradient that is zero where the step is not real
    penalty = 0 if decoupled else weight_decay
    for part in chunks(master.size):
        p, m, v = master[part], mean[part], square[part]
        a, b = scratch[0][: part.stop - part.start], scratch[1][: part.stop - part.start]
        d = keep(direction(p, gradient[part], a, penalty, maximize), bits, a)
        np.subtract(d, m, out=b)
        np.add(m, np.multiply(b, new, out=b), out=m)
        np.multiply(np.multiply(d, d, out=b), new_square, out=b)
        np.add(np.multiply(v, old_square, out=v), b, out=v)
        if largest is not None:
            v = np.maximum(largest[part], v, out=largest[part])
        np.add(np.divide(np.sqrt(v, out=b), root, out=b), eps, out=b)
        np.multiply(np.divide(m, b, out=b), rate, out=b)
        if decoupled and weight_decay:
            np.multiply(p, shrink, out=p)
        np.subtract(p, keep(b, bits, b), out=p)
        for copy in copies:
            narrow(p, copy[part])


# (master, gradient, mean, square, largest or None, steps, lr, betas, go or None, copies, scratch, options): one pass
adam_update = Primitive("adam_update", "optim", _adam_update)


class Adam(Optimizer):
    """m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; p <- p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    weight_decay adds weight_decay p to g; decoupled_weight_decay=True is AdamW. t counts the real steps of each
    parameter. amsgrad=True divides by the largest v so far. maximize=True climbs. foreach, fused and capturable,
    PyTorch's choice of implementation, change nothing: every step is one pass over flat memory; differentiable=True is
    not here. Computed in float32, float64 for float64 parameters; b^t in float64.
    Raises ArgumentError for options out of range.
    Kingma, Ba 2015, arXiv:1412.6980, algorithm 1; Reddi et al. 2018, arXiv:1904.09237, algorithm 2.
    """

    moments = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    device_keys = ("lr", "betas")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ):
        refuse_differentiable(type(self).__name__, differentiable)
        self.decoupled = decoupled_weight_decay
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "amsgrad": amsgrad, "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        need_betas(type(self).__name__, options)

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        adam_update(
            run.master,
            run.gradient,
            run.moment("exp_avg"),
            run.moment("exp_avg_sq"),
            run.moment("max_exp_avg_sq") if group["amsgrad"] else None,
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


class AdamW(Adam):
    """Adam whose weight decay is no part of the gradient: p <- (1 - lr weight_decay) p, then Adam's step.

    Loshchilov, Hutter 2019, arXiv:1711.05101, algorithm 2, with the decay proportional to lr, as in PyTorch.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ):
        words = {"differentiable": differentiable, "decoupled_weight_decay": True}
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, **words)
