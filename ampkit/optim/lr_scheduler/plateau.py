"""ReduceLROnPlateau: reduce the learning rate when a metric stops improving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ampkit.base.errors import ArgumentError
from ampkit.core.arguments import checked_constructor
from ampkit.core.saved_state import need_keys, need_like

from ..optimizer import Optimizer
from .schedule import per_group


class ReduceLROnPlateau:
    """Multiply lr by factor when more than `patience` consecutive calls of `step(metrics)` brought no improvement.

    mode: whether lower ("min") or higher ("max") metrics are better. threshold: the least improvement, as a fraction of
    the best value (threshold_mode "rel") or absolute ("abs"). cooldown: calls after a reduction that are not counted.
    min_lr: the lower bound of lr, one number or one per group. eps: lr stays if it would change by no more than this.
    `step` reads metrics on the host, so call it at the end of an epoch.
    Raises ArgumentError for values out of range, DTypeError for something that is no Optimizer.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
    ):
        where = type(self).__name__
        _check_modes(where, mode, threshold_mode)
        if not 0 <= factor < 1:
            raise ArgumentError(where, "factor in [0, 1)", repr(factor))
        self.min_lrs = per_group(where, "min_lr", min_lr, len(optimizer.param_groups))
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.eps = threshold, threshold_mode, cooldown, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        optimizer.schedule = self
        optimizer.schedules_made += 1

    def step(self, metrics: Any, epoch: int | None = None) -> None:
        """Record `metrics`, a number or a tensor of one element; reduce lr after more than `patience` bad calls.

        epoch: the number of this call, else one more than that of the last.
        """
        value, better = float(metrics), self.is_better(float(metrics), self.best)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self.best = value if better else self.best
        self.num_bad_epochs = 0 if better else self.num_bad_epochs + 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def is_better(self, a: float, best: float) -> bool:
        """Whether `a` improves on `best` by more than the threshold."""
        if self.threshold_mode == "abs":
            return a < best - self.threshold if self.mode == "min" else a > best + self.threshold
        bound = best * (1 - self.threshold if self.mode == "min" else 1 + self.threshold)
        return a < bound if self.mode == "min" else a > bound

    def _reduce(self) -> None:
        for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            held = group["lr"]
            if held - (lower := max(held * self.factor, least)) > self.eps:
                group["lr"] = lower

    @property
    def in_cooldown(self) -> bool:
        """Whether calls are not counted, after a reduction."""
        return self.cooldown_counter > 0

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer."""
        return {key: value for key, value in vars(self).items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state of `state_dict`. Raises ArgumentError, with nothing changed, for one that does not fit."""
        where, own = "ReduceLROnPlateau.load_state_dict", self.state_dict()
        need_keys(where, state_dict, own)
        for key, value in own.items():
            need_like(where, key, state_dict[key], value, finite=key != "best")
        _check_modes(where, state_dict["mode"], state_dict["threshold_mode"])
        self.__dict__.update({key: state_dict[key] for key in own})


def _check_modes(where: str, mode: str, threshold_mode: str) -> None:
    if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
        got = f"{mode!r} and {threshold_mode!r}"
        raise ArgumentError(where, "mode 'min' or 'max' and threshold_mode 'rel' or 'abs'", got)


checked_constructor(ReduceLROnPlateau)
