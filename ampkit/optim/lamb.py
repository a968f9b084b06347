"""LAMB: Adam's direction, and for each parameter a step in proportion to its norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.limits import NotNegative, Probability
from ..base.registry import register_optimizer
from ..core.dispatch import primitive
from .argument_checks import hyperparameters
from .clip import power_sum
from .elementwise import Elementwise, Step, scalars_of
from .flat.arena import Span
from .flat.memory import CHUNK, chunks, narrow, select_into
from .param_group import ParamGroup


@primitive("optim.lamb")
def lamb_update(
    master: Array, gradient: Array, mean: Array, square: Array, slices: list[slice], copies: list[Array], step: Step
) -> None:
    """Update, in place, the parameters that have `slices` of the flat masters, and their flat 16-bit copies."""
    kind, backend, all_finite = master.dtype, backends.backend_of(master), step.all_finite
    numbers = scalars_of(step, kind)
    wide = backend.empty((min(CHUNK, master.size),), dtypes.float64)
    for bounds in slices:
        p, g, m, v = master[bounds], gradient[bounds], mean[bounds], square[bounds]
        length, moved = power_sum(p, 2.0, wide), backend.zeros((), dtypes.float64)
        for part in chunks(p.size):
            learn(g[part], m[part], v[part], numbers, step)
            np.add(moved, power_sum(move(p[part], m[part], v[part], numbers), 2.0, wide), out=moved)
        both = np.logical_and(length > 0, moved > 0)
        trust = np.where(both, np.sqrt(length / np.where(both, moved, 1.0)), 1.0)
        rate = (step.values["lr"] * trust).astype(kind)
        for part in chunks(p.size):
            select_into(p[part], p[part] - move(p[part], m[part], v[part], numbers) * rate, all_finite)
            for copy in copies:
                narrow(p[part], copy[bounds][part])


def learn(g: Array, m: Array, v: Array, numbers: Sequence[Any], step: Step) -> None:
    """Take the gradient of a piece into its moments."""
    new, hold, take, *_ = numbers
    d = -g if step.options["maximize"] else g
    select_into(m, m + (d - m) * new, step.all_finite)
    select_into(v, v * hold + d * d * take, step.all_finite)


def move(p: Array, m: Array, v: Array, numbers: Sequence[Any]) -> Array:
    """The direction of a piece, before its rate."""
    # Worked out twice, before and after its norm is known: cheaper than memory for all of it.
    *_, correction, root, eps, decay = numbers
    move = m / correction / (np.sqrt(v) / root + eps)
    return move + p * decay if decay else move


@register_optimizer
class LAMB(Elementwise):
    """u <- (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay p; p <- p - lr |p| / |u| u, per parameter.

    m and v are Adam's. The trust ratio |p| / |u| is that of whole parameters, and 1 where either norm is 0. Biases and
    gains are often left without decay: give them a group with weight_decay 0. maximize=True climbs. Computed in
    float32, float64 for float64 parameters; norms in float64.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range.
    You et al. 2019, arXiv:1904.00962, algorithm 2, with phi the identity.
    """

    by_element = False
    moments = ("exp_avg", "exp_avg_sq")
    device_keys = ("lr", "betas")
    decoupled = True

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-3,
        betas: tuple[Probability, Probability] = (0.9, 0.999),
        eps: NotNegative = 1e-6,
        weight_decay: NotNegative = 1e-2,
        *,
        maximize: bool = False,
        stochastic_rounding: bool = False,
    ):
        super().__init__(params, hyperparameters(locals()))

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        first, second = step.betas
        correction, root = step.bias_correction(first), np.sqrt(step.bias_correction(second))
        decay = step.options["weight_decay"]
        return 1 - first, second, 1 - second, correction, root, step.options["eps"], decay

    def update(self, group: ParamGroup, span: Span, all_finite: Array | None) -> None:
        segments = span.segments
        slices = [slice(s.start - span.start, s.stop - span.start) for s in segments if s.stop > s.start]
        moments, step = [span.moment(name) for name in self.moments], self.step_inputs(group, span, all_finite)
        lamb_update(span.master, span.gradient, *moments, slices, span.copies, step)
