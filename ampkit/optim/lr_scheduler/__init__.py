"""Learning-rate schedules with PyTorch's names, signatures and values: closed forms of the optimizer's step count n.

A step that a GradScaler skipped does not count.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ampkit.base.errors import ArgumentError, switch
from ampkit.core.saved_state import need_keys, need_like

from ..optimizer import Optimizer
from ..param_group import ParamGroup
from .chain import ChainedScheduler as ChainedScheduler
from .cyclic import CyclicLR as CyclicLR
from .decay import CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts
from .decay import ExponentialLR as ExponentialLR
from .decay import MultiplicativeLR as MultiplicativeLR
from .decay import MultiStepLR as MultiStepLR
from .decay import PolynomialLR as PolynomialLR
from .plateau import ReduceLROnPlateau as ReduceLROnPlateau
from .schedule import LRScheduler, factor_of, load_parts, per_group, refuse_without_momentum, share, whole


class LambdaLR(LRScheduler):
    """base lr times lr_lambda(n). lr_lambda: one function, or one per group; ArgumentError for another number."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ):
        groups = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ArgumentError("LambdaLR", f"{groups} functions, one per parameter group", f"{len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        factors = [factor_of("LambdaLR", function, n) for function in self.lr_lambdas]
        return [base * factor for base, factor in zip(self.base_lrs, factors, strict=True)]


class StepLR(LRScheduler):
    """base lr times gamma^(n // step_size)."""

    constants = ("step_size", "gamma")

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1):
        self.step_size, self.gamma = whole("StepLR", "step_size", step_size), gamma
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        return [base * self.gamma ** (n // self.step_size) for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """base lr times factor for the first total_iters steps, then base lr. ArgumentError for a factor outside [0, 1]."""

    constants = ("factor", "total_iters")

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1):
        self.factor, self.total_iters = share("ConstantLR", "factor", factor), total_iters
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        return [base * (self.factor if n < self.total_iters else 1.0) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """base lr times a factor that changes linearly from start_factor to end_factor in total_iters steps, then stays.

    Raises ArgumentError for factors outside [0, 1], or start_factor = 0.
    """

    constants = ("start_factor", "end_factor", "total_iters")

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ):
        self.start_factor, self.end_factor = (
            share("LinearLR", "start_factor", start_factor),
            share("LinearLR", "end_factor", end_factor),
        )
        if start_factor == 0:
            raise ArgumentError("LinearLR", "start_factor > 0", "0")
        self.total_iters = whole("LinearLR", "total_iters", total_iters)
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        done = min(n, self.total_iters) / self.total_iters
        return [base * (self.start_factor + (self.end_factor - self.start_factor) * done) for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """From base lr to eta_min over T_max steps along a half cosine, and back over the next T_max.

    Loshchilov, Hutter 2017, arXiv:1608.03983, eq. 5, without restarts.
    """

    constants = ("T_max", "eta_min")

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1):  # noqa: N803
        self.T_max, self.eta_min = whole("CosineAnnealingLR", "T_max", T_max), eta_min
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        left = (1 + math.cos(math.pi * n / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * left for base in self.base_lrs]


class OneCycleLR(LRScheduler):
    """lr rises from max_lr / div_factor to max_lr, then falls to max_lr / div_factor / final_div_factor.

    total_steps: the steps of both phases, or epochs and steps_per_epoch; after them lr stays. pct_start: the fraction
    of the steps in which lr rises. anneal_strategy: "cos" or "linear". three_phase=True first falls to the initial lr
    in as many steps as it rose, then to the last one. cycle_momentum=True moves momentum, or Adam's beta1, the opposite
    way between max_momentum and base_momentum.
    Raises ArgumentError for values out of range. Smith, Topin 2018, arXiv:1708.07120.
    """

    constants = ("total_steps", "_phases", "_peaks", "_lows", "_ends", "_momenta", "anneal_strategy")
    choices: Mapping[str, Iterable[str]] = {"anneal_strategy": ("cos", "linear")}

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ):
        cycle_momentum = switch("OneCycleLR", "cycle_momentum", cycle_momentum)
        three_phase = switch("OneCycleLR", "three_phase", three_phase)
        groups = len(optimizer.param_groups)
        self.total_steps = _total(total_steps, epochs, steps_per_epoch)
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError("OneCycleLR", "anneal_strategy 'cos' or 'linear'", repr(anneal_strategy))
        self.anneal_strategy = anneal_strategy
        up = share("OneCycleLR", "pct_start", pct_start) * self.total_steps
        self._phases = [up - 1, 2 * up - 2, self.total_steps - 1] if three_phase else [up - 1, self.total_steps - 1]
        if not div_factor or not final_div_factor:
            got = f"div_factor={div_factor}, final_div_factor={final_div_factor}"
            raise ArgumentError("OneCycleLR", "div_factor and final_div_factor other than 0", got)
        self._peaks = per_group("OneCycleLR", "max_lr", max_lr, groups)
        self._lows = [peak / div_factor for peak in self._peaks]
        self._ends = [low / final_div_factor for low in self._lows]
        pairs = zip(
            per_group("OneCycleLR", "base_momentum", base_momentum, groups),
            per_group("OneCycleLR", "max_momentum", max_momentum, groups),
            strict=True,
        )
        self._momenta = list(pairs) if cycle_momentum else None
        if cycle_momentum:
            refuse_without_momentum("OneCycleLR", optimizer)
        self._second = [group["betas"][1] if "betas" in group else None for group in optimizer.param_groups]
        super().__init__(optimizer, last_epoch)

    def _prepare(self, number: int, group: ParamGroup) -> None:
        group.update(initial_lr=self._lows[number], max_lr=self._peaks[number], min_lr=self._ends[number])

    def values(self, n: int) -> list[dict[str, Any]]:
        return [self._of_group(i, n) for i in range(len(self.base_lrs))]

    def _of_group(self, i: int, n: int) -> dict[str, Any]:
        low, peak, end = self._lows[i], self._peaks[i], self._ends[i]
        found: dict[str, Any] = {"lr": self._along([low, peak, *([low] if len(self._phases) == 3 else []), end], n)}
        if self._momenta is not None:
            base, most = self._momenta[i]
            moved = self._along([most, base, most, *([most] if len(self._phases) == 3 else [])], n)
            found.update({"momentum": moved} if self._second[i] is None else {"betas": (moved, self._second[i])})
        return found

    def _along(self, stops: list[float], n: int) -> float:
        n = min(n, self.total_steps - 1)
        start = 0.0
        for phase, end in enumerate(self._phases):
            if n <= end or phase == len(self._phases) - 1:
                break
            start = end
        done = (n - start) / (end - start) if end != start else 1.0
        if self.anneal_strategy == "cos":
            done = (1 - math.cos(math.pi * done)) / 2
        return stops[phase] + (stops[phase + 1] - stops[phase]) * done


class SequentialLR(LRScheduler):
    """Schedules one after the other: schedulers[i] starts, from its step 0, after milestones[i - 1] optimizer steps.

    Raises ArgumentError unless there is one rising milestone between every two schedulers, all of `optimizer`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ):
        if not schedulers or len(milestones) != len(schedulers) - 1 or list(milestones) != sorted(milestones):
            raise ArgumentError(
                "SequentialLR",
                "one rising milestone between every two schedulers",
                f"{len(schedulers)} schedulers, {list(milestones)}",
            )
        if any(s.optimizer is not optimizer for s in schedulers):
            raise ArgumentError("SequentialLR", "schedulers of this optimizer", "one of another")
        if len({tuple(tuple(row) for row in s.values(0)) for s in schedulers}) > 1:
            raise ArgumentError(
                "SequentialLR",
                "schedulers that set the same hyperparameters",
                "some that also set momentum or betas",
            )
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)

    def values(self, n: int) -> list[dict[str, Any]]:
        at = bisect_right(self._milestones, n)
        return self._schedulers[at].values(n - (self._milestones[at - 1] if at else 0))

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "_milestones": self._milestones,
            "_schedulers": [s.state_dict() for s in self._schedulers],
        }

    def _with_parts(self) -> list[LRScheduler]:
        return [self, *(each for part in self._schedulers for each in part._with_parts())]

    def _load(self, state: dict[str, Any]) -> None:
        where = "SequentialLR.load_state_dict"
        need_keys(where, state, ("_milestones", "_schedulers"))
        need_like(where, "_milestones", state["_milestones"], self._milestones)
        if sorted(state["_milestones"]) != list(state["_milestones"]):
            raise ArgumentError(where, "rising _milestones", repr(state["_milestones"]))
        load_parts(where, self._schedulers, state["_schedulers"])
        self._milestones = list(state["_milestones"])
        super()._load(state)


def _total(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is not None:
        return whole("OneCycleLR", "total_steps", total_steps)
    if epochs is None or steps_per_epoch is None:
        raise ArgumentError("OneCycleLR", "total_steps, or epochs and steps_per_epoch", "neither")
    return whole("OneCycleLR", "epochs", epochs) * whole("OneCycleLR", "steps_per_epoch", steps_per_epoch)
