"""CyclicLR, OneCycleLR, and SWALR: the learning rate of stochastic weight averaging."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ampkit.base.errors import ArgumentError, DTypeError, check_choice, switch

from ..optimizer import Optimizer
from ..param_group import ParamGroup
from .schedule import LRScheduler, factor_of, fraction, per_group, positive_integer

# (function of (x, gamma), whether x is the number of the cycle or of the step)
_SCALES: dict[str, tuple[Callable[[float, float], float], str]] = {
    "triangular": (lambda x, gamma: 1.0, "cycle"),
    "triangular2": (lambda x, gamma: 0.5 ** (x - 1), "cycle"),
    "exp_range": (lambda x, gamma: gamma**x, "iterations"),
}


class _CyclicMomentum(LRScheduler):
    # Schedules that may move momentum, or Adam's beta1, the opposite way of lr.

    def _set_momenta(self, optimizer: Optimizer, cycles: bool, base_momentum: Any, max_momentum: Any) -> None:
        where, groups = type(self).__name__, len(optimizer.param_groups)
        low = per_group(where, "base_momentum", base_momentum, groups)
        high = per_group(where, "max_momentum", max_momentum, groups)
        self._momenta = list(zip(low, high, strict=True)) if cycles else None
        if cycles and not {"momentum", "betas"} & set(optimizer.device_keys):
            got = type(optimizer).__name__
            raise ArgumentError(where, "an optimizer with momentum or betas", got, "pass cycle_momentum=False")
        self._beta2 = [group["betas"][1] if "betas" in group else None for group in optimizer.param_groups]

    def values(self, n: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for i, rate in enumerate(self.rates(n)):
            found.append({"lr": rate})
            if self._momenta is not None:
                momentum, beta2 = self._momentum(n, *self._momenta[i]), self._beta2[i]
                found[i].update({"momentum": momentum} if beta2 is None else {"betas": (momentum, beta2)})
        return found

    def _momentum(self, n: int, low: float, high: float) -> float:
        raise NotImplementedError(f"{type(self).__name__}._momentum")


class CyclicLR(_CyclicMomentum):
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
        check_choice("CyclicLR", "scale_mode", scale_mode, "cycle", "iterations")
        self.mode, self.gamma, self._scale_fn = mode, gamma, scale_fn
        self._scale_mode = scale_mode if scale_fn is not None else _SCALES[mode][1]
        self._base = per_group("CyclicLR", "base_lr", base_lr, groups)
        self._peaks = per_group("CyclicLR", "max_lr", max_lr, groups)
        self._up = positive_integer("CyclicLR", "step_size_up", step_size_up)
        down = self._up if step_size_down is None else step_size_down
        self._down = positive_integer("CyclicLR", "step_size_down", down)
        self._set_momenta(optimizer, cycle_momentum, base_momentum, max_momentum)
        super().__init__(optimizer, last_epoch)

    def _prepare(self, number: int, group: ParamGroup) -> None:
        group.update(initial_lr=self._base[number])

    def _in_own_names(self, state: dict[str, Any]) -> dict[str, Any]:
        if "total_size" not in state:
            return state
        moves, total = state["cycle_momentum"], round(state["total_size"])
        up = round(state["total_size"] * state["step_ratio"])
        momenta = list(zip(state["base_momentums"], state["max_momentums"], strict=True)) if moves else None
        rates = {"_base": state["base_lrs"], "_peaks": state["max_lrs"], "_momenta": momenta}
        return {**state, **rates, "_up": up, "_down": total - up, "_scale_mode": state["scale_mode"]}

    def state_dict(self) -> dict[str, Any]:
        """`LRScheduler.state_dict`, and the place where PyTorch keeps the attributes of a `scale_fn`."""
        return {**super().state_dict(), "_scale_fn_custom": None}

    def _need_constant(self, where: str, name: str, value: Any) -> None:
        super()._need_constant(where, name, value)
        if name == "mode" and self._scale_fn is None and value not in _SCALES:
            raise ArgumentError(where, f"mode as one of {', '.join(_SCALES)}", repr(value))

    def rates(self, n: int) -> list[float]:
        height = self._height(n)
        return [base + (peak - base) * height for base, peak in zip(self._base, self._peaks, strict=True)]

    def _momentum(self, n: int, low: float, high: float) -> float:
        return high - (high - low) * self._height(n)

    def _height(self, n: int) -> float:
        cycle, at = divmod(n, self._up + self._down)
        height = at / self._up if at <= self._up else (self._up + self._down - at) / self._down
        x = cycle + 1 if self._scale_mode == "cycle" else n
        own = self._scale_fn
        scale = _SCALES[self.mode][0](x, self.gamma) if own is None else factor_of("CyclicLR", own, x)
        return height * scale


class OneCycleLR(_CyclicMomentum):
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
        check_choice("OneCycleLR", "anneal_strategy", anneal_strategy, "cos", "linear")
        self.anneal_strategy = anneal_strategy
        up = fraction("OneCycleLR", "pct_start", pct_start) * self.total_steps
        self._phases = [up - 1, 2 * up - 2, self.total_steps - 1] if three_phase else [up - 1, self.total_steps - 1]
        if not div_factor or not final_div_factor:
            got = f"div_factor={div_factor}, final_div_factor={final_div_factor}"
            raise ArgumentError("OneCycleLR", "div_factor and final_div_factor other than 0", got)
        self._peaks = per_group("OneCycleLR", "max_lr", max_lr, groups)
        self._lows = [peak / div_factor for peak in self._peaks]
        self._ends = [low / final_div_factor for low in self._lows]
        self._set_momenta(optimizer, cycle_momentum, base_momentum, max_momentum)
        super().__init__(optimizer, last_epoch)

    def _prepare(self, number: int, group: ParamGroup) -> None:
        group.update(initial_lr=self._lows[number], max_lr=self._peaks[number], min_lr=self._ends[number])
        if self._momenta is not None:
            group.update(base_momentum=self._momenta[number][0], max_momentum=self._momenta[number][1])

    def _in_own_names(self, state: dict[str, Any]) -> dict[str, Any]:
        if "_schedule_phases" not in state:
            return state
        groups = self.optimizer.param_groups  # in which PyTorch keeps the rates and momenta between which it moves
        rates = {"_peaks": [group["max_lr"] for group in groups], "_ends": [group["min_lr"] for group in groups]}
        momenta = (
            [(group["base_momentum"], group["max_momentum"]) for group in groups] if state["cycle_momentum"] else None
        )
        phases = [phase["end_step"] for phase in state["_schedule_phases"]]
        more = {"_phases": phases, "_momenta": momenta, "anneal_strategy": state["_anneal_func_type"]}
        return {**state, "_lows": state["base_lrs"], **rates, **more}

    def rates(self, n: int) -> list[float]:
        stops = zip(self._lows, self._peaks, self._ends, strict=True)
        return [self._along(low, peak, end, n) for low, peak, end in stops]

    def _momentum(self, n: int, low: float, high: float) -> float:
        return self._along(high, low, high, n)

    def _along(self, first: float, middle: float, last: float, n: int) -> float:
        # The value at step n on the way from `first` to `middle`, in three phases back to `first`, and to `last`.
        stops = [first, middle, first, last] if len(self._phases) == 3 else [first, middle, last]
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


def _total(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is not None:
        return positive_integer("OneCycleLR", "total_steps", total_steps)
    if epochs is None or steps_per_epoch is None:
        raise ArgumentError("OneCycleLR", "total_steps, or epochs and steps_per_epoch", "neither")
    epochs = positive_integer("OneCycleLR", "epochs", epochs)
    return epochs * positive_integer("OneCycleLR", "steps_per_epoch", steps_per_epoch)


class SWALR(LRScheduler):
    """Anneal lr from its value at the first `step()` to swa_lr in anneal_epochs steps, along a half cosine or linearly.

    For the last part of training, whose weights are averaged. Until the first `step()` another schedule may drive the
    optimizer; from then on this one does. swa_lr: one number, or one per group. anneal_strategy: "cos" or "linear".
    Raises ArgumentError for values out of range. Izmailov et al. 2018, arXiv:1803.05407.
    """

    is_factor = False
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
        check_choice("SWALR", "anneal_strategy", anneal_strategy, "cos", "linear")
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

    def _in_own_names(self, state: dict[str, Any]) -> dict[str, Any]:
        if "_anneal_strategy" not in state:
            return state
        ends = [group["swa_lr"] for group in self.optimizer.param_groups]
        n, strategy, epochs = state["last_epoch"], state["_anneal_strategy"], state["anneal_epochs"]
        done = _done(n, epochs, strategy)
        pairs = zip(state["_last_lr"], ends, strict=True)
        starts = ends if done == 1 else [(rate - done * end) / (1 - done) for rate, end in pairs]
        return {**state, "swa_lrs": ends, "anneal_strategy": strategy, "_starts": starts, "_waits": n < 1}

    def _rates_now(self, optimizer: Optimizer) -> list[float]:
        return [group["lr"] for group in optimizer.param_groups]

    def rates(self, n: int) -> list[float]:
        done = _done(n, self.anneal_epochs, self.anneal_strategy)
        return [start + (end - start) * done for start, end in zip(self._starts, self.swa_lrs, strict=True)]

    def step(self, epoch: float | None = None) -> None:
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


def _done(n: int, epochs: int, strategy: str) -> float:
    # The part of the way that SWALR has gone at step n.
    done = min(1.0, n / epochs) if epochs else float(n > 0)
    return done if strategy == "linear" else (1 - math.cos(math.pi * done)) / 2
