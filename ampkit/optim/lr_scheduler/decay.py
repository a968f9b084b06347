"""Decaying schedules: at milestones, exponential, multiplicative, polynomial, and cosine with warm restarts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ampkit.base.errors import ArgumentError
from ampkit.core.saved_state import is_number

from ..optimizer import Optimizer
from .schedule import LRScheduler, factor_of, whole


class MultiStepLR(LRScheduler):
    """base lr times gamma^k, where k of the milestones, numbers of steps, are at most n."""

    constants = ("milestones", "gamma")

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1):
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

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


class MultiplicativeLR(LRScheduler):
    """base lr times lr_lambda(1) lr_lambda(2) ... lr_lambda(n). lr_lambda: one function, or one per group.

    Raises ArgumentError for another number of functions.
    """

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
            raise ArgumentError("MultiplicativeLR", f"{groups} functions, one per parameter group", got)
        self._products = [[1.0] * groups]  # [n][group], cached so that no function is called twice for a step
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        for k in range(len(self._products), n + 1):
            pairs = zip(self._products[-1], self.lr_lambdas, strict=True)
            self._products.append([held * factor_of("MultiplicativeLR", function, k) for held, function in pairs])
        return [base * product for base, product in zip(self.base_lrs, self._products[n], strict=True)]


class PolynomialLR(LRScheduler):
    """base lr times (1 - n / total_iters)^power; 0 from total_iters on."""

    constants = ("total_iters", "power")

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1):
        if not 0 <= power < math.inf:
            raise ArgumentError("PolynomialLR", "a power from 0", f"{power}")
        self.total_iters, self.power = whole("PolynomialLR", "total_iters", total_iters), power
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        left = (1 - min(n, self.total_iters) / self.total_iters) ** self.power
        return [base * left for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """lr falls from base lr to eta_min along a half cosine of T_0 steps, then restarts, each time T_mult times as long.

    Raises ArgumentError for T_0 or T_mult that are no integers >= 1, or a negative eta_min.

    Loshchilov, Hutter 2017, arXiv:1608.03983, eq. 5.
    """

    constants = ("T_0", "T_mult", "eta_min")

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,  # noqa: N803
        T_mult: int = 1,  # noqa: N803
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ):
        where = "CosineAnnealingWarmRestarts"
        self.T_0, self.T_mult, self.eta_min = whole(where, "T_0", T_0), whole(where, "T_mult", T_mult), eta_min
        if eta_min < 0:
            raise ArgumentError(where, "eta_min from 0", repr(eta_min))
        super().__init__(optimizer, last_epoch)

    def rates(self, n: int) -> list[float]:
        length = self.T_0
        while self.T_mult > 1 and n >= length:
            n, length = n - length, length * self.T_mult
        left = (1 + math.cos(math.pi * (n % length) / length)) / 2
        return [self.eta_min + (base - self.eta_min) * left for base in self.base_lrs]
