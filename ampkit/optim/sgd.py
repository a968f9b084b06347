"""SGD: stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..backends import Array
from ..base.errors import ArgumentError
from ..base.limits import NotNegative, Number
from ..base.registry import Fault, register_optimizer
from .argument_checks import hyperparameters
from .elementwise import Elementwise, Step, has_momentum
from .flat.moments import StateDtype
from .param_group import ParamGroup


class SGD(Elementwise):
    """b <- momentum b + (1 - dampening) (g + weight_decay p); p <- p - lr b, or with nesterov p - lr (g + momentum b).

    The first gradient enters b whole. maximize=True climbs. foreach and fused, PyTorch's choice of implementation,
    change nothing: every step is one pass over flat memory; differentiable=True records it. Computed in float32,
    float64 for float64 parameters.
    dampening: of the gradient that enters b. nesterov: look ahead along the momentum.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    state_dtype: of the moments, "float32", "bfloat16", "float8" or "int8" (docs/optimizers.md).
    Raises ArgumentError for options out of range.
    Sutskever et al. 2013, ICML; the form with lr outside of b is PyTorch's.
    """

    moments = ("momentum_buffer",)
    device_keys = ("lr", "momentum")
    counts_steps = False

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-3,
        momentum: NotNegative = 0,
        dampening: Number = 0,
        weight_decay: NotNegative = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        stochastic_rounding: bool = False,
        state_dtype: StateDtype = "float32",
    ):
        super().__init__(params, hyperparameters(locals()))

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        if options.get("nesterov") and (options.get("momentum", 1) <= 0 or options.get("dampening", 0) != 0):
            got = f"momentum={options.get('momentum')}, dampening={options.get('dampening')}"
            raise ArgumentError("SGD with nesterov", "momentum > 0 and dampening 0", got)

    def needs_moment(self, group: ParamGroup, name: str) -> bool:
        return has_momentum(group)

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        take = np.where(np.greater(step.steps, 0), 1 - step.options["dampening"], 1.0)  # the first enters whole
        return step.values["lr"], step.values["momentum"], take, step.options["nesterov"]

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (buffer,), (rate, push, take, nesterov) = moments, scalars
        if buffer is not None:
            buffer *= push
            buffer += g * take
            g = g + buffer * push if nesterov else buffer
        p -= g * rate


def _check_nesterov(section: Any) -> Iterator[Fault]:
    if section.nesterov and not section.momentum:
        yield Fault("optimizer.momentum", "a momentum above 0 for nesterov", "0.0")


register_optimizer(SGD, check=_check_nesterov)
