"""RMSprop: the gradient over a running root mean square of itself."""

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


def _rmsprop_update(
    master: Array,
    gradient: Array,
    square: Array,
    mean: Array | None,
    buffer: Array | None,
    lr: Array,
    momentum: Array,
    go: Array | None,
    copies: list[Array],
    scratch: list[Array],
    alpha: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    kind = master.dtype
    bits, rate, push = mask(go, kind), lr.astype(kind), chosen(go, momentum, 1.0, kind)
    hold, new = chosen(go, alpha, 1.0, kind), chosen(go, 1 - alpha, 0.0, kind)
    for part in chunks(master.size):
        p, v = master[part], square[part]
        a, b = scratch[0][: part.stop - part.start], scratch[1][: part.stop - part.start]
        d = keep(direction(p, gradient[part], a, weight_decay, maximize), bits, a)
        np.multiply(np.multiply(d, d, out=b), new, out=b)
        np.add(np.multiply(v, hold, out=v), b, out=v)
        root = v if mean is None else _variance(v, mean[part], d, new, b)
        np.add(np.sqrt(root, out=b), eps, out=b)
        move = keep(np.divide(d, b, out=b), bits, b)
        if buffer is not None:
            move = buffer[part]
            np.add(np.multiply(move, push, out=move), b, out=move)
        np.subtract(p, keep(np.multiply(move, rate, out=b), bits, b), out=p)
        for copy in copies:
            narrow(p, copy[part])


def _variance(square: Array, mean: Array, d: Array, new: Any, out: Array) -> Array:
    np.add(mean, np.multiply(np.subtract(d, mean, out=out), new, out=out), out=mean)
    np.subtract(square, np.multiply(mean, mean, out=out), out=out)
    return np.maximum(out, 0, out=out)  # rounding alone makes it negative


# (master, gradient, square, mean or None, buffer or None, lr, momentum, go or None, copies, scratch, options): one pass
rmsprop_update = Primitive("rmsprop_update", "optim", _rmsprop_update)


class RMSprop(Optimizer):
    """v <- alpha v + (1 - alpha) g^2; b <- momentum b + g / (sqrt(v) + eps); p <- p - lr b.

    centered=True takes the variance, v - m^2 with m the running mean of g, in place of v; it is never below 0, which
    rounding makes of it in PyTorch. weight_decay adds weight_decay p to g. maximize=True climbs. foreach and capturable
    change nothing; differentiable=True is not here. Computed in float32, float64 for float64 parameters.
    Raises ArgumentError for options out of range.
    Hinton, Srivastava, Swersky 2012, Neural Networks for Machine Learning, lecture 6e; centered: Graves 2013,
    arXiv:1308.0850, eq. 38-45, with eps outside of the root, as in PyTorch.
    """

    moments = ("square_avg", "momentum_buffer", "grad_avg")
    device_keys = ("lr", "momentum")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ):
        refuse_differentiable("RMSprop", differentiable)
        options = {"lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "centered": centered, "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        need("RMSprop", options, "momentum")
        need("RMSprop", options, "alpha")

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        moving = "momentum" in group.scheduled or group["momentum"] != 0
        rmsprop_update(
            run.master,
            run.gradient,
            run.moment("square_avg"),
            run.moment("grad_avg") if group["centered"] else None,
            run.moment("momentum_buffer") if moving else None,
            group.device["lr"],
            group.device["momentum"],
            go,
            run.copies,
            run.block.scratch(2),
            alpha=group["alpha"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
        )
