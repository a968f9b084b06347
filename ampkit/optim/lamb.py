"""LAMB: Adam's direction, and for each parameter a step in proportion to its norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import backends
from ..arena import Run
from ..backends import Array
from ..core import dtypes
from ..core.primitive import Primitive
from ..flat import CHUNK, chosen, chunks, keep, mask, narrow
from .clip import power_sum
from .group import Group, need_betas
from .optimizer import Optimizer
from .sgd import direction


@dataclass(frozen=True)
class _Factors:
    """What a step multiplies and divides by, 0-d on the device, in the dtype of the masters."""

    bits: Array | None
    new: Any
    hold_square: Any
    new_square: Any
    correction: Array
    root: Array
    eps: float
    decay: float


def _lamb_update(
    master: Array,
    gradient: Array,
    mean: Array,
    square: Array,
    segments: list[slice],
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
    kind, backend = master.dtype, backends.of(master)
    factors = _factors(steps, betas, go, kind, eps, weight_decay)
    wide = backend.empty((min(CHUNK, master.size),), dtypes.float64)
    for segment in segments:
        p, g, m, v = master[segment], gradient[segment], mean[segment], square[segment]
        length, moved = power_sum(p, 2.0, wide), backend.zeros((), dtypes.float64)
        for part in chunks(p.size):
            a, b = (s[: part.stop - part.start] for s in scratch)
            _learn(g[part], m[part], v[part], a, b, factors, maximize)
            np.add(moved, power_sum(_move(p[part], m[part], v[part], a, b, factors), 2.0, wide), out=moved)
        both = np.logical_and(length > 0, moved > 0)
        trust = np.where(both, np.sqrt(length / np.where(both, moved, 1.0)), 1.0)
        rate = (lr * trust).astype(kind)
        for part in chunks(p.size):
            a, b = (s[: part.stop - part.start] for s in scratch)
            move = np.multiply(_move(p[part], m[part], v[part], a, b, factors), rate, out=b)
            np.subtract(p[part], keep(move, factors.bits, b), out=p[part])
            for copy in copies:
                narrow(p[part], copy[segment][part])


def _factors(steps: Array, betas: Array, go: Array | None, kind: Any, eps: float, decay: float) -> _Factors:
    first, second, count = betas[..., 0], betas[..., 1], steps + 1
    return _Factors(
        mask(go, kind),
        chosen(go, 1 - first, 0.0, kind),
        chosen(go, second, 1.0, kind),
        chosen(go, 1 - second, 0.0, kind),
        (1 - np.power(first, count)).astype(kind),
        np.sqrt(1 - np.power(second, count)).astype(kind),
        eps,
        decay,
    )


def _learn(g: Array, m: Array, v: Array, a: Array, b: Array, factors: _Factors, maximize: bool) -> None:
    d = keep(direction(m, g, a, 0, maximize), factors.bits, a)
    np.multiply(np.subtract(d, m, out=b), factors.new, out=b)
    np.add(m, b, out=m)
    np.multiply(np.multiply(d, d, out=b), factors.new_square, out=b)
    np.add(np.multiply(v, factors.hold_square, out=v), b, out=v)


def _move(p: Array, m: Array, v: Array, a: Array, b: Array, factors: _Factors) -> Array:
    # Worked out twice, before and after its norm is known: cheaper than memory for all of it.
    np.add(np.divide(np.sqrt(v, out=b), factors.root, out=b), factors.eps, out=b)
    np.divide(np.divide(m, factors.correction, out=a), b, out=b)
    return np.add(b, np.multiply(p, factors.decay, out=a), out=b) if factors.decay else b


# (master, gradient, mean, square, a slice per parameter, steps, lr, betas, go or None, copies, scratch, options)
lamb_update = Primitive("lamb_update", "optim", _lamb_update)


class LAMB(Optimizer):
    """u <- (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay p; p <- p - lr |p| / |u| u, per parameter.

    m and v are Adam's. The trust ratio |p| / |u| is that of whole parameters, and 1 where either norm is 0. Biases and
    gains are often left without decay: give them a group with weight_decay 0. maximize=True climbs. Computed in
    float32, float64 for float64 parameters; norms in float64. Raises ArgumentError for options out of range.
    You et al. 2019, arXiv:1904.00962, algorithm 2, with phi the identity.
    """

    moments = ("exp_avg", "exp_avg_sq")
    device_keys = ("lr", "betas")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
    ):
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        need_betas("LAMB", options)

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        slots = run.block.slots[run.first : run.last]
        lamb_update(
            run.master,
            run.gradient,
            run.moment("exp_avg"),
            run.moment("exp_avg_sq"),
            [slice(s.start - run.start, s.stop - run.start) for s in slots if s.stop > s.start],
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
