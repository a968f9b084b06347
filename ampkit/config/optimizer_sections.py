"""The [optimizer] sections, derived from the constructors of the registered optimizers, and the [schedule] sections."""

from __future__ import annotations

from typing import Literal

from .. import optim as optim  # registers the optimizers
from ..base.limits import Count, Fraction, NotNegative, Positive, Probability, UnitInterval, Whole
from ..base.registry import OPTIMIZERS as OPTIMIZER_ENTRIES
from ..base.registry import OptimizerEntry
from .derived import derive_section
from .field_types import Section

# What recipes do not say: which implementation of PyTorch's runs, and that a loss is maximized.
_NO_KEYS = ("params", "foreach", "fused", "capturable", "differentiable", "maximize")
# Narrower than the constructors' bounds, which are PyTorch's: with a learning rate of 0 nothing is trained.
_TYPES = {"lr": Positive, "eps": Positive, "momentum": Probability}


class OptimizerKeys(Section):
    """Keys of optimizers.

    lr: learning rate. betas: decay rates of the running means of the gradient and of its square. eps: added to the
    denominator. weight_decay: of the weights, as part of the gradient or, if decoupled, apart from it. momentum: decay
    rate of the running sum of gradients. amsgrad: divide by the largest second moment so far. decoupled_weight_decay:
    shrink the weights by lr weight_decay, as AdamW. stochastic_rounding: round 16-bit parameters stochastically, and
    store no float32 master weights.
    """


def _optimizer_section(entry: OptimizerEntry) -> type[Section]:
    exclude, types = (*_NO_KEYS, *entry.exclude), {**_TYPES, **entry.types}
    return derive_section(entry.name, entry.build, exclude=exclude, types=types, base=OptimizerKeys)


OPTIMIZERS = {name: _optimizer_section(entry) for name, entry in OPTIMIZER_ENTRIES.items()}


class Constant(Section):
    """The learning rate as it is, after `warmup` steps of linear rise."""

    name: Literal["constant"] = "constant"
    warmup: Whole = 0


class Cosine(Section):
    """Down to `eta_min` along half a cosine, after `warmup` steps of linear rise."""

    name: Literal["cosine"]
    warmup: Whole = 0
    eta_min: NotNegative = 0.0


class Step(Section):
    """Times `gamma` every `step_size` steps, after `warmup` steps of linear rise."""

    name: Literal["step"]
    warmup: Whole = 0
    step_size: Count
    gamma: Positive = 0.1


class Linear(Section):
    """Straight down to `end_factor` of the learning rate, after `warmup` steps of linear rise."""

    name: Literal["linear"]
    warmup: Whole = 0
    end_factor: UnitInterval = 0.0


class OneCycle(Section):
    """`OneCycleLR`: up from lr / div_factor over a share `pct_start` of the run, then down along a cosine."""

    name: Literal["onecycle"]
    pct_start: Fraction = 0.3
    div_factor: Positive = 25.0
    final_div_factor: Positive = 1e4
