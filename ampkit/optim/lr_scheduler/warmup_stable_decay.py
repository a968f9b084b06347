"""WSD: a warmup, a long stable phase, and a decay at the end."""

from __future__ import annotations

import math

from ampkit.base.errors import ArgumentError, check_choice
from ampkit.core.arguments import is_whole

from ..optimizer import Optimizer
from .schedule import LRScheduler, fraction

DECAYS = ("linear", "cosine", "1-sqrt")


class WarmupStableDecayLR(LRScheduler):
    """base lr times a factor: from 0 up to 1 in num_warmup_steps, 1 for num_stable_steps, down in num_decay_steps.

    Step n (from 0) of the warmup has the factor (n + 1) / (num_warmup_steps + 1). decay_type: with x from 0 to 1 over
    the decay, "linear" 1 - x, "cosine" (1 + cos(pi x)) / 2, "1-sqrt" 1 - sqrt(x); min_lr_ratio: what it ends at, and
    stays. A training can go on from the stable phase with another length, since no step of it depends on the length.
    Raises ArgumentError for steps that are no whole numbers from 0, a ratio outside [0, 1], and another decay_type.
    Hu et al. 2024 (MiniCPM), arXiv:2404.06395, section 4; "1-sqrt": Hägele et al. 2024, arXiv:2405.18392.
    """

    constants = ("num_warmup_steps", "num_stable_steps", "num_decay_steps", "decay_type", "min_lr_ratio")
    choices = {"decay_type": DECAYS}  # noqa: RUF012 - as in LRScheduler

    def __init__(
        self,
        optimizer: Optimizer,
        num_warmup_steps: int,
        num_stable_steps: int,
        num_decay_steps: int,
        decay_type: str = "1-sqrt",
        min_lr_ratio: float = 0.0,
        last_epoch: int = -1,
    ):
        where = "WarmupStableDecayLR"
        check_choice(where, "decay_type", decay_type, *DECAYS)
        self.num_warmup_steps = _count("num_warmup_steps", num_warmup_steps)
        self.num_stable_steps = _count("num_stable_steps", num_stable_steps)
        self.num_decay_steps = _count("num_decay_steps", num_decay_steps)
        self.decay_type, self.min_lr_ratio = decay_type, fraction(where, "min_lr_ratio", min_lr_ratio)
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        return [base * self._factor(n) for base in self.base_lrs]

    def _factor(self, n: int) -> float:
        if n < self.num_warmup_steps:
            return (n + 1) / (self.num_warmup_steps + 1)
        done = n - self.num_warmup_steps - self.num_stable_steps
        if done <= 0:
            return 1.0
        x = min(done / self.num_decay_steps, 1.0) if self.num_decay_steps else 1.0
        left = {"linear": 1 - x, "cosine": (1 + math.cos(math.pi * x)) / 2, "1-sqrt": 1 - math.sqrt(x)}[self.decay_type]
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * left


def _count(name: str, value: int) -> int:
    if not is_whole(value) or value < 0:
        raise ArgumentError("WarmupStableDecayLR", f"{name} as a whole number from 0", repr(value))
    return int(value)
