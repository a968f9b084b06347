"""Whether a learning rate is too high, and which one is not: trained anew, in some steps, with lower ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...core.autograd.grad_mode import no_grad
from .step_state import StepState
from .trial import Cure, Trials


class Training(NamedTuple):
    """A way to train from the beginning.

    losses: the losses of some steps, with a factor for the learning rate; None if one is not finite or they grow. rate:
    the learning rate. key: its key in a recipe, or "".
    """

    losses: Callable[[float], Sequence[float] | None]
    rate: float
    key: str = ""


_FACTORS = (0.1, 1e-2, 1e-3, 1e-4, 1e-5)
_RATES = (0.1, 1e-2, 1e-3, 1e-4)  # where no factor is enough
LEAST, MOST = 20, 100  # steps of such a training
_SECONDS = 20.0  # of this process, after which no further rate is tried


def lower(training: Training) -> Cure | None:
    """The cure that lowers the learning rate, if it is what makes a training fail; else None.

    It is at fault if training fails with it, or its loss rises, and a lower one learns.
    """
    until, rate = time.process_time() + _SECONDS, training.rate
    before = training.losses(1.0)
    if before is not None and _end(before) <= 1.1 * before[0]:
        return None
    best: tuple[float, float, Sequence[float]] | None = None
    for factor in (*_FACTORS, *(other / rate for other in _RATES if other < rate * _FACTORS[-1])):
        losses = training.losses(factor) if time.process_time() < until else None
        if losses and _end(losses) < losses[0] and (best is None or _end(losses) < best[0]):
            best = _end(losses), factor, losses
        elif best is not None:
            break
    if best is None:
        return None
    end, factor, losses = best
    told = f"tried from new weights: in {len(losses)} steps the loss goes from {losses[0]:.3g} to {end:.3g}"
    key = f", {training.key}={rate * factor:g}" if training.key else ""
    return Cure(f"lower the learning rate, from {rate:g} to {rate * factor:g}{key} ({told})")


def grows(losses: Sequence[float]) -> bool:
    """Whether a training need not go on: its loss is not finite, or far above where it began."""
    return bool(losses) and not losses[-1] < 5 * abs(losses[0]) + 1


def _end(losses: Sequence[float]) -> float:
    """The mean of the last quarter of the losses."""
    last = losses[-max(1, len(losses) // 4) :]
    return sum(last) / len(last)


def rate_of(state: StepState) -> float:
    """The highest learning rate of the optimizers; 0 if there are none."""
    return max((float(group.get("lr", 0.0)) for each in state.optimizers for group in each.param_groups), default=0.0)


def from_new_weights(trials: Trials) -> Training | None:
    """Trains by repeating a step, from new weights; None for a step whose optimizer is not known."""
    state = trials.state
    taken = [
        int(arena.steps.max()) for each in state.optimizers for group in each.param_groups for arena in group.arenas
    ]
    if not taken or rate_of(state) <= 0:
        return None
    steps = min(MOST, max(LEAST, max(taken) + 10))

    def retrain(factor: float) -> list[float] | None:
        state.before.put_back()
        _begin_anew(state, factor)
        losses: list[float] = []
        while len(losses) < steps:
            watch, failed = trials.once(None)
            found = watch.losses
            losses += found if watch.updates > 1 else found[-1:]
            if failed is not None or not found or grows(losses):
                return None
            if not watch.updates:
                _update(state)
        return losses if len(losses) >= 2 else None

    return Training(retrain, rate_of(state))


def _begin_anew(state: StepState, factor: float) -> None:
    """New weights, and optimizers, schedules and scalers as they begin, with `factor` times the learning rate."""
    with no_grad():
        for model in state.models:
            for module in model.modules():
                reset = getattr(module, "reset_parameters", None)
                if callable(reset) and any(True for _ in module.parameters(recurse=False)):
                    reset()
    for optimizer in state.optimizers:
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": {}, "param_groups": groups})
        for group in optimizer.param_groups:
            group["lr"] = float(group["lr"]) * factor
    for schedule in state.schedules:
        schedule.base_lrs = [rate * factor for rate in schedule.base_lrs]
    for scaler in state.scalers:
        if scaler.is_enabled():
            scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**16})
            scaler.monitor.restore((0, 0, []))
            scaler._checks.clear()


def _update(state: StepState) -> None:
    """Update the weights, where the step itself does not: with its gradients, without their loss scale."""
    for optimizer in state.optimizers:
        for gradient in (parameter.grad for group in optimizer.param_groups for parameter in group["params"]):
            if gradient is not None and gradient.tag is not None:
                gradient.array[...] = gradient.array / float(gradient.tag.factor)
                gradient.tag = None
        optimizer.step()
        optimizer.zero_grad()
