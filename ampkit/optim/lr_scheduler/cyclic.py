"""CyclicLR, and SWALR: the learning rate of stochastic weight averaging."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ampkit.base.errors import ArgumentError, DTypeError, switch

from ..optimizer import Optimizer
from ..param_group import ParamGroup
from .schedule import LRScheduler, factor_of, per_group, refuse_without_momentum, whole

_SCALES: dict[
    str, tuple[Callable[[float, float], float], str]
] = {  # (function of (x, gamma), whether x is the cycle's number or n)
    "triangular": (lambda x, gamma: 1.0, "cycle"),
    "triangular2": (lambda x, gamma: 0.5 ** (x - 1), "cycle"),
    "exp_range": (lambda x, gamma: gamma**x, "iterations"),
}


class CyclicLR(LRScheduler):
    """lr rises linearly from base_lr to max_lr in step_size_up steps, falls back in step_size_down, and repeats.

    step_size_down: step_size_up by default. mode: the amplitude max_lr - base_lr is constant ("triangular"), halved
    after each cycle ("triangular2") or multiplied by gamma^n ("exp_range"). scale_fn replaces mode: a factor of the
    amplitude, of the number of the cycle, from 1, or with scale_mode="iterations" of n. cycle_momentum=True moves
    momentum, or Adam's beta1, the opposite way between max_momentum and base_momentum.
    Raises ArgumentError for values out of range. Smith 2017, arXiv:1506.01186.
    """

    constants = ("_base", "_peaks", "_up", "_down", "mode", "gamma", "_momenta", "_scale_mode")
    choices: Mapping[str, Iterable[str]] = {"_scale_mode": ("cycle", "iterations")}

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ):
        cycle_momentum = switch("CyclicLR", "cycle_momentum", cycle_momentum)
        groups = len(optimizer.param_groups)
        if scale_fn is None and mode not in _SCALES:
            raise ArgumentError("CyclicLR", "mode 'triangular', 'triangular2' or 'exp_range', or scale_fn", repr(mode))
        if scale_mode not in ("cycle", "iterations"):
            raise ArgumentError("CyclicLR", "scale_mode 'cycle' or 'iterations'", repr(scale_mode))
        self.mode, self.gamma, self._scale_fn = mode, gamma, scale_fn
        self._scale_mode = scale_mode if scale_fn is not None else _SCALES[mode][1]
        self._base = per_group("CyclicLR", "base_lr", base_lr, groups)
        self._peaks = per_group("CyclicLR", "max_lr", max_lr, groups)
        self._up = whole("CyclicLR", "step_size_up", step_size_up)
        self._down = self._up if step_size_down is None else whole("CyclicLR", "step_size_down", step_size_down)
        least = per_group("CyclicLR", "base_momentum", base_momentum, groups)
        most = per_group("CyclicLR", "max_momentum", max_momentum, groups)
        self._momenta = [list(pair) for pair in zip(least, most, strict=True)] if cycle_momentum else None
        if cycle_momentum:
            refuse_without_momentum("CyclicLR", optimizer)
        self._second = [group["betas"][1] if "betas" in group else None for group in optimizer.param_groups]
        super().__init__(optimizer, last_epoch)

    def _prepare(self, number: int, group: ParamGroup) -> None:
        group.update(initial_lr=self._base[number])

    def _need_constant(self, where: str, name: str, value: Any) -> None:
        super()._need_constant(where, name, value)
        if name == "mode" and self._scale_fn is None and value not in _SCALES:
            raise ArgumentError(where, f"mode as one of {', '.join(_SCALES)}", repr(value))

    def values(self, n: int) -> list[dict[str, Any]]:
        return [self._of_group(i, self._height(n)) for i in range(len(self.base_lrs))]

    def _height(self, n: int) -> float:
        cycle, at = divmod(n, self._up + self._down)
        height = at / self._up if at <= self._up else (self._up + self._down - at) / self._down
        x = cycle + 1 if self._scale_mode == "cycle" else n
        own = self._scale_fn
        scale = _SCALES[self.mode][0](x, self.gamma) if own is None else factor_of("CyclicLR", own, x)
        return height * scale

    def _of_group(self, i: int, height: float) -> dict[str, Any]:
        base, peak = self._base[i], self._peaks[i]
        found: dict[str, Any] = {"lr": base + (peak - base) * height}
        if self._momenta is not None:
            least, most = self._momenta[i]
            moved = most - (most - least) * height
            found.update({"momentum": moved} if self._second[i] is None else {"betas": (moved, self._second[i])})
        return found


class SWALR(LRScheduler):
    """Anneal lr from its value at the first `step()` to swa_lr in anneal_epochs steps, along a half cosine or linearly.

    For the last part of training, whose weights are averaged. Until the first `step()` another schedule may drive the
    optimizer; from then on this one does. swa_lr: one number, or one per group. anneal_strategy: "cos" or "linear".
    Raises ArgumentError for values out of range. Izmailov et al. 2018, arXiv:1803.05407.
    """

    constants = ("swa_lrs", "anneal_epochs", "anneal_strategy", "_starts", "_waits")
    choices: Mapping[str, Iterable[str]] = {"anneal_strategy": ("cos", "linear")}

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ):
        if not isinstance(optimizer, Optimizer):
            raise DTypeError("SWALR", "an Optimizer", type(optimizer).__name__)
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError("SWALR", "anneal_strategy 'cos' or 'linear'", repr(anneal_strategy))
        if isinstance(anneal_epochs, bool) or not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ArgumentError("SWALR", "anneal_epochs as an integer >= 0", repr(anneal_epochs))
        self.anneal_epochs, self.anneal_strategy = anneal_epochs, anneal_strategy
        self.swa_lrs = per_group("SWALR", "swa_lr", swa_lr, len(optimizer.param_groups))
        self._starts, self._waits, before = self._rates_now(optimizer), True, optimizer.schedule
        super().__init__(optimizer, last_epoch)
        optimizer.schedule = before

    def _prepare(self, number: int, group: ParamGroup) -> None:
        super()._prepare(number, group)
        group["swa_lr"] = self.swa_lrs[number]

    def _rates_now(self, optimizer: Optimizer) -> list[float]:
        return [group["lr"] for group in optimizer.param_groups]

    def rates(self, n: int) -> list[float]:
        done = min(1.0, n / self.anneal_epochs) if self.anneal_epochs else float(n > 0)
        done = done if self.anneal_strategy == "linear" else (1 - math.cos(math.pi * done)) / 2
        return [start + (end - start) * done for start, end in zip(self._starts, self.swa_lrs, strict=True)]

    def step(self, epoch: None = None) -> None:
        """Advance as `LRScheduler.step` does; the first call starts from the optimizer's current learning rates."""
        if self._waits:
            seen, self._starts, self._waits = self._seen, self._rates_now(self.optimizer), False
            self._start(0)
            self._seen, self.optimizer.schedule = seen, self
        super().step(epoch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if not self._waits:
            self.optimizer.schedule = self
