"""The [optimizer] and [schedule] sections, derived from the signatures of what is registered."""

from __future__ import annotations

from .. import optim as optim  # registers the optimizers
from ..base.limits import Positive, Probability, Whole
from ..base.registry import OPTIMIZERS as OPTIMIZER_ENTRIES
from ..base.registry import SCHEDULES as SCHEDULE_ENTRIES
from ..base.registry import OptimizerEntry
from ..optim.argument_checks import STEP_FLAGS
from ..optim.lr_scheduler import of_recipes as of_recipes  # registers the schedules
from .derived import derive_section
from .field_types import Section

# What recipes do not say: which implementation of PyTorch's runs, and that a loss is maximized.
_NO_KEYS = ("params", "maximize", *STEP_FLAGS)
# Narrower than the constructors' bounds, which are PyTorch's: with a learning rate of 0 nothing is trained.
_TYPES = {"lr": Positive, "eps": Positive, "momentum": Probability}


class OptimizerKeys(Section):
    """Keys of optimizers.

    lr: learning rate. betas: decay rates of the running means of the gradient and of its square. eps: added to the
    denominator. weight_decay: of the weights, as part of the gradient or, if decoupled, apart from it. momentum: decay
    rate of the running sum of gradients. amsgrad: divide by the largest second moment so far. decoupled_weight_decay:
    shrink the weights by lr weight_decay, as AdamW. stochastic_rounding: round 16-bit parameters stochastically, and
    store no float32 master weights. state_dtype: of the moments, "float32", "bfloat16", "float8" or "int8"
    (docs/optimizers.md).
    """


def _optimizer_section(entry: OptimizerEntry) -> type[Section]:
    exclude, types = (*_NO_KEYS, *entry.exclude), {**_TYPES, **entry.types}
    return derive_section(entry.name, entry.build, exclude=exclude, types=types, base=OptimizerKeys)


OPTIMIZERS = {name: _optimizer_section(entry) for name, entry in OPTIMIZER_ENTRIES.items()}


class Warmup(Section):
    """Keys of schedules that begin with a linear rise. warmup: steps of linear rise to the learning rate."""

    name: str
    warmup: Whole = 0


SCHEDULES = {
    name: derive_section(name, entry.build, exclude=("optimizer", "steps"), base=Warmup if entry.warms_up else Section)
    for name, entry in SCHEDULE_ENTRIES.items()
}
