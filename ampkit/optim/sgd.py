"""SGD: stochastic gradient descent with momentum."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arena import Run
from ..backends import Array
from ..core.errors import ArgumentError
from ..core.primitive import Primitive
from ..flat import chunks, keep, mask, narrow
from .given import refuse_differentiable
from .group import Group, need
from .optimizer import Optimizer


def _sgd_update(
    master: Array,
    gradient: Array,
    buffer: Array | None,
    steps: Array,
    lr: Array,
    momentum: Array,
    go: Array | None,
    copies: list[Array],
    scratch: list[Array],
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    kind = master.dtype
    bits, rate, push = mask(go, kind), lr.astype(kind), momentum.astype(kind)
    hold = push if go is None else np.where(go, push, 1).astype(kind)
    take = np.where(steps == 0, 1, 1 - dampening).astype(kind)  # the first gradient starts the buffer whole
    for part in chunks(master.size):
        p, a, b = master[part], scratch[0][: part.stop - part.start], scratch[1][: part.stop - part.start]
        d = keep(direction(p, gradient[part], a, weight_decay, maximize), bits, a)
        if buffer is not None:
            m = buffer[part]
            np.multiply(m, hold, out=m)
            np.add(m, np.multiply(d, take, out=b) if dampening else d, out=m)
            d = np.add(np.multiply(m, push, out=b), d, out=b) if nesterov else m
        np.subtract(p, keep(np.multiply(d, rate, out=b), bits, b), out=p)
        for copy in copies:
            narrow(p, copy[part])


def direction(p: Array, g: Array, out: Array, decay: float, maximize: bool) -> Array:
    """The gradient of what is minimized, L2 penalty included: `g` itself, or written to `out`."""
    if decay:
        np.multiply(p, decay, out=out)
        return np.subtract(out, g, out=out) if maximize else np.add(out, g, out=out)
    return np.negative(g, out=out) if maximize else g


# (master, gradient, buffer or None, steps, lr, momentum, go or None, copies, scratch, options): one pass, in place
sgd_update = Primitive("sgd_update", "optim", _sgd_update)


class SGD(Optimizer):
    """b <- momentum b + (1 - dampening) (g + weight_decay p); p <- p - lr b, or with nesterov p - lr (g + momentum b).

    The first gradient enters b whole. maximize=True climbs. foreach and fused, PyTorch's choice of implementation,
    change nothing: every step is one pass over flat memory; differentiable=True is not here. Computed in float32,
    float64 for float64 parameters.
    Raises ArgumentError for options out of range.
    Sutskever et al. 2013, ICML; the form with lr outside of b is PyTorch's.
    """

    moments = ("momentum_buffer",)
    device_keys = ("lr", "momentum")
    counts_steps = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ):
        refuse_differentiable("SGD", differentiable)
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**options, "nesterov": nesterov, "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        need("SGD", options, "momentum")
        if options.get("nesterov") and (options.get("momentum", 1) <= 0 or options.get("dampening", 0) != 0):
            got = f"momentum={options.get('momentum')}, dampening={options.get('dampening')}"
            raise ArgumentError("SGD with nesterov", "momentum > 0 and dampening 0", got)

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        moving = "momentum" in group.scheduled or group["momentum"] != 0
        sgd_update(
            run.master,
            run.gradient,
            run.moment("momentum_buffer") if moving else None,
            run.steps,
            group.device["lr"],
            group.device["momentum"],
            go,
            run.copies,
            run.block.scratch(2),
            dampening=group["dampening"],
            weight_decay=group["weight_decay"],
            nesterov=group["nesterov"] and moving,
            maximize=group["maximize"],
        )
