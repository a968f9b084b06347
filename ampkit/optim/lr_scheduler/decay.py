"""Schedules by a formula: of your own functions, stepwise, linear, exponential, polynomial and cosine."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, NoneType
from typing import Any

from ampkit.base.errors import ArgumentError
from ampkit.core.saved_state import is_number, unchanged_on_error

from ..optimizer import Optimizer
from .schedule import LRScheduler, factor_of, fraction, positive_integer


class _LambdasLR(LRScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ):
        groups = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            got = f"{len(self.lr_lambdas)}"
            raise ArgumentError(type(self).__name__, f"{groups} functions, one per parameter group", got)
        self._products = [[1.0] * groups]
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """`LRScheduler.state_dict`, and of each function its attributes if it is an object that has some, else None."""
        kept = [dict(vars(each)) if _has_attributes(each) else None for each in self.lr_lambdas]
        return {**super().state_dict(), "lr_lambdas": kept}

    def _load(self, state: dict[str, Any]) -> None:
        kept = state.get("lr_lambdas", [None] * len(self.lr_lambdas))
        where, needs = f"{type(self).__name__}.load_state_dict", f"lr_lambdas as {len(self.lr_lambdas)} dicts or None"
        fits = isinstance(kept, list) and len(kept) == len(self.lr_lambdas)
        if not fits or [each for each in kept if not isinstance(each, (dict, NoneType))]:
            raise ArgumentError(where, needs, repr(kept)[:80])
        pairs = [(f, each) for f, each in zip(self.lr_lambdas, kept, strict=True) if _has_attributes(f) and each]
        with unchanged_on_error(*(function for function, _ in pairs)):
            for function, attributes in pairs:
                vars(function).update(attributes)
            self._products = self._products[:1]
            super()._load(state)

    def _factors(self, n: int) -> list[float]:
        return [factor_of(type(self).__name__, function, n) for function in self.lr_lambdas]


def _has_attributes(function: Any) -> bool:
    return hasattr(function, "__dict__") and not isinstance(function, FunctionType)


class LambdaLR(_LambdasLR):
    """base lr times lr_lambda(n). lr_lambda: one function, or one per group; ArgumentError for another number."""

    is_factor = False

    def rates(self, n: int) -> list[float]:
        return [base * factor for base, factor in zip(self.base_lrs, self._factors(n), strict=True)]


class MultiplicativeLR(_LambdasLR):
    """base lr times lr_lambda(1) lr_lambda(2) ... lr_lambda(n). lr_lambda: one function, or one per group.

    Raises ArgumentError for another number of functions.
    """

    def rates(self, n: int) -> list[float]:
        n = int(n)  # `step` may be told a fraction
        for k in range(len(self._products), n + 1):  # products[n][group]: no function is called twice for a step
            self._products.append([a * b for a, b in zip(self._products[-1], self._factors(k), strict=True)])
        return [base * product for base, product in zip(self.base_lrs, self._products[n], strict=True)]


class StepLR(LRScheduler):
    """base lr times gamma^(n // step_size)."""

    constants = ("step_size", "gamma")

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1):
        self.step_size, self.gamma = positive_integer("StepLR", "step_size", step_size), gamma
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        return [base * self.gamma ** (n // self.step_size) for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """base lr times factor for the first total_iters steps, then base lr. ArgumentError for a factor outside [0, 1]."""

    constants = ("factor", "total_iters")

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1):
        self.factor, self.total_iters = fraction("ConstantLR", "factor", factor), total_iters
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
        self.start_factor = fraction("LinearLR", "start_factor", start_factor)
        self.end_factor = fraction("LinearLR", "end_factor", end_factor)
        if start_factor == 0:
            raise ArgumentError("LinearLR", "start_factor > 0", "0")
        self.total_iters = positive_integer("LinearLR", "total_iters", total_iters)
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
        self.T_max, self.eta_min = positive_integer("CosineAnnealingLR", "T_max", T_max), eta_min
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        left = (1 + math.cos(math.pi * n / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * left for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """base lr times gamma^k, where k of the milestones, numbers of steps, are at most n."""

    constants = ("milestones", "gamma")

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1):
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """`LRScheduler.state_dict`, with the milestones counted, as in PyTorch."""
        return {**super().state_dict(), "milestones": Counter(self.milestones)}

    def _in_own_names(self, state: dict[str, Any]) -> dict[str, Any]:
        counted = state["milestones"]
        return {**state, "milestones": sorted(Counter(counted).elements())} if isinstance(counted, dict) else state

    def _need_constant(self, where: str, name: str, value: Any) -> None:
        if name != "milestones":
            super()._need_constant(where, name, value)
        elif not isinstance(value, (list, tuple)) or not all(map(is_number, value)) or sorted(value) != list(value):
            raise ArgumentError(where, "milestones as a rising list of numbers", repr(value))

    def rates(self, n: int) -> list[float]:
        return [base * self.gamma ** bisect_right(self.milestones, n) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """base lr times gamma^n."""

    constants = ("gamma",)

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        return [base * self.gamma**n for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """base lr times (1 - n / total_iters)^power; 0 from total_iters on."""

    constants = ("total_iters", "power")

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1):
        if not 0 <= power < math.inf:
            raise ArgumentError("PolynomialLR", "a power from 0", f"{power}")
        self.total_iters, self.power = positive_integer("PolynomialLR", "total_iters", total_iters), power
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        left = (1 - min(n, self.total_iters) / self.total_iters) ** self.power
        return [base * left for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """lr falls from base lr to eta_min along a half cosine of T_0 steps, then restarts, each time T_mult times as long.

    Raises ArgumentError for T_0 or T_mult that are no integers >= 1, or a negative eta_min.
    Loshchilov, Hutter 2017, arXiv:1608.03983, eq. 5.
    """

    is_factor = False
    constants = ("T_0", "T_mult", "eta_min")

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1):  # noqa: N803
        where = "CosineAnnealingWarmRestarts"
        self.T_0 = positive_integer(where, "T_0", T_0)
        self.T_mult, self.eta_min = positive_integer(where, "T_mult", T_mult), eta_min
        if eta_min < 0:
            raise ArgumentError(where, "eta_min from 0", repr(eta_min))
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """`LRScheduler.state_dict`, and the place in the present period, as in PyTorch."""
        at, length = self._period(self.last_epoch)
        return {**super().state_dict(), "T_cur": at, "T_i": length}

    def _period(self, n: int) -> tuple[int, int]:
        # The number of steps since the last restart, and until the next one.
        length = self.T_0
        while self.T_mult > 1 and n >= length:
            n, length = n - length, length * self.T_mult
        return n % length, length

    def rates(self, n: int) -> list[float]:
        at, length = self._period(n)
        left = (1 + math.cos(math.pi * at / length)) / 2
        return [self.eta_min + (base - self.eta_min) * left for base in self.base_lrs]
