"""Which layers may run in int8, so that the loss stays within a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ampkit.base.errors import ArgumentError, NonFiniteError
from ampkit.base.search import search
from ampkit.core.autograd.grad_mode import no_grad

from ..module import Module
from . import layers
from .convert import observed

_SEARCHES = 6  # with ever lower limits, where layers lose more together than one by one

Loss = Callable[..., Any]  # (model, *batch) -> the mean loss []


class Choice(NamedTuple):
    """A layer: its path, the relative change of the loss where it alone is in int8, and whether it is to be."""

    path: str
    error: float
    int8: bool


def need_budget(budget: Any) -> None:
    """Raise ArgumentError unless `budget` is a number above 0."""
    if not (isinstance(budget, (int, float)) and not isinstance(budget, bool) and 0 < budget < math.inf):
        cure = "0.01 lets the loss rise by 1 %"
        raise ArgumentError("quantize", "a budget above 0, a relative change of the loss", repr(budget), cure)


def judged(prepared: Module, batches: Sequence[Any], loss: Loss) -> list[Choice]:
    """All layers of a calibrated model as choices for int8, each tried alone. Raises NonFiniteError as `choose`."""
    return [Choice(path, error, True) for path, error in _Trials(prepared, batches, loss).alone().items()]


def choose(prepared: Module, batches: Sequence[Any], loss: Loss, budget: float) -> list[Choice]:
    """Which layers of a calibrated model to run in int8, so that the loss over `batches` rises by at most `budget`.

    Each layer is tried alone. Then a 0/1 programme takes those that save the most multiply-adds, and the layers that it
    takes are tried together; where they lose more than the budget, it searches again with a lower limit.
    Raises ArgumentError for a budget that is not positive, NonFiniteError for a loss that is not finite in float32.
    """
    need_budget(budget)
    trials = _Trials(prepared, batches, loss)
    errors = trials.alone()
    chosen = _searched(trials, errors, budget)
    return [Choice(path, errors[path], path in chosen) for path in errors]


class _Trials:
    """Losses of a calibrated model with some of its layers in int8."""

    def __init__(self, prepared: Module, batches: Sequence[Any], loss: Loss):
        self.model, self.batches, self.loss = prepared, batches, loss
        self.layers = observed(prepared)
        self.wide = self._mean()
        if not math.isfinite(self.wide):
            raise NonFiniteError("quantize", "a loss that is finite in float32", str(self.wide))

    def alone(self) -> dict[str, float]:
        """By how much the loss rises where one layer is in int8; 0 where it falls."""
        return {path: max(self.rise([path]), 0.0) for path in self.layers}

    def rise(self, paths: Iterable[str]) -> float:
        """The relative change of the loss where these layers are in int8."""
        chosen = {path: self.layers[path] for path in paths}
        try:
            for path, layer in chosen.items():
                codes = layer.returns_codes_to(chosen.values())
                layer.__dict__["trial"] = layers.in_int8(layer, path, codes)
            return _rise(self._mean(), self.wide)
        finally:
            for layer in chosen.values():
                layer.__dict__["trial"] = None

    def _mean(self) -> float:
        with no_grad():
            return sum(float(self.loss(self.model, *batch)) for batch in self.batches) / len(self.batches)


def _searched(trials: _Trials, errors: Mapping[str, float], budget: float) -> set[str]:
    limit, values = budget, [each.macs for each in trials.layers.values()]
    for _ in range(_SEARCHES):
        taken, _ = search(values, [*errors.values()], limit)
        chosen = {path for path, is_taken in zip(errors, taken, strict=True) if is_taken}
        together = trials.rise(chosen)
        if together <= budget:
            return chosen
        limit *= min(0.5, max(0.1, budget / together))
    return set()


def _rise(loss: float, wide: float) -> float:
    rise = (loss - wide) / abs(wide) if wide else loss
    return rise if math.isfinite(rise) else math.inf
