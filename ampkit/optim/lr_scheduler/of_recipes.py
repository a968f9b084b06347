"""The schedules that recipes name. Each is a function of the optimizer, the steps that it lasts, and its keys."""

from __future__ import annotations

import math
from typing import Literal

from ampkit.base.limits import Count, Fraction, NotNegative, Positive, UnitInterval
from ampkit.base.registry import register_schedule

from ..optimizer import Optimizer
from .cyclic import OneCycleLR
from .decay import CosineAnnealingLR, LambdaLR, LinearLR, StepLR
from .schedule import LRScheduler
from .warmup_stable_decay import WarmupStableDecayLR


def constant(optimizer: Optimizer, steps: int) -> LRScheduler:
    """The learning rate as it is, after `warmup` steps of linear rise."""
    return LambdaLR(optimizer, lambda step: 1.0)


def cosine(optimizer: Optimizer, steps: int, eta_min: NotNegative = 0.0) -> LRScheduler:
    """Down to `eta_min` along half a cosine, after `warmup` steps of linear rise.

    eta_min: the learning rate at the end; that of a group with another learning rate has the same ratio to its own.
    """
    lr = optimizer.defaults["lr"]
    if all(group["lr"] == lr for group in optimizer.param_groups):
        return CosineAnnealingLR(optimizer, steps, eta_min)
    left = eta_min / lr
    return LambdaLR(optimizer, lambda n: left + (1 - left) * (1 + math.cos(math.pi * min(n / steps, 1.0))) / 2)


def step(optimizer: Optimizer, steps: int, step_size: Count, gamma: Positive = 0.1) -> LRScheduler:
    """Times `gamma` every `step_size` steps, after `warmup` steps of linear rise.

    step_size: steps of one learning rate. gamma: the factor from one to the next.
    """
    return StepLR(optimizer, step_size, gamma)


def linear(optimizer: Optimizer, steps: int, end_factor: UnitInterval = 0.0) -> LRScheduler:
    """Straight down to `end_factor` of the learning rate, after `warmup` steps of linear rise.

    end_factor: the share of the learning rate that is left at the end.
    """
    return LinearLR(optimizer, 1.0, end_factor, steps)


def wsd(
    optimizer: Optimizer,
    steps: int,
    decay: Fraction = 0.2,
    decay_type: Literal["linear", "cosine", "1-sqrt"] = "1-sqrt",
    min_lr_ratio: UnitInterval = 0.0,
) -> LRScheduler:
    """Warmup, stable, decay: the learning rate as it is, then down in a last share of the run; `WarmupStableDecayLR`.

    decay: the share of the steps after the warmup in which the learning rate falls. decay_type: the shape of its fall.
    min_lr_ratio: the share of the learning rate that is left at the end.
    """
    falling = max(1, round(steps * decay))
    return WarmupStableDecayLR(optimizer, 0, steps - falling, falling, decay_type, min_lr_ratio)


def onecycle(
    optimizer: Optimizer,
    steps: int,
    pct_start: Fraction = 0.3,
    div_factor: Positive = 25.0,
    final_div_factor: Positive = 1e4,
) -> LRScheduler:
    """`OneCycleLR`: up from lr / div_factor over a share `pct_start` of the run, then down along a cosine.

    pct_start: the share of the run in which the learning rate rises. div_factor: the learning rate over that of the
    first step. final_div_factor: that of the first step over that of the last.
    """
    return OneCycleLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        steps,
        pct_start=pct_start,
        cycle_momentum=False,
        div_factor=div_factor,
        final_div_factor=final_div_factor,
    )


for _schedule in (constant, cosine, step, linear, wsd):
    register_schedule(_schedule)
register_schedule(onecycle, warms_up=False)
