"""Callbacks, in Lightning's words: Callback, EarlyStopping, ModelCheckpoint."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from ...base.errors import ArgumentError, check_choice
from ...core.saved_state import need_keys
from .rows import BETTER

Mode = Literal["min", "max"]


class Callback:
    """What is called while a model is trained: a subclass defines the hooks that it needs.

    Hooks run between two updates, on every rank. Where one raises, a checkpoint is written first, and the traceback
    names the callback and the hook. `state_dict` and `load_state_dict` are what checkpoints keep of a callback, under
    the name of its class.
    """

    def on_fit_start(self, trainer: Any) -> None:
        """Called before the first update."""

    def on_train_batch_end(self, trainer: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after each update. outputs: the loss [], on its device. batch: the last of the update's batches.

        batch_idx: the number of the update, from 1.
        """

    def on_validation_end(self, trainer: Any) -> None:
        """Called after each evaluation; `trainer.callback_metrics` has its values."""

    def on_save_checkpoint(self, trainer: Any, checkpoint: dict[str, Any]) -> None:
        """Called with the state that is about to be written."""

    def on_load_checkpoint(self, trainer: Any, checkpoint: Mapping[str, Any]) -> None:
        """Called with a state that was loaded."""

    def on_exception(self, trainer: Any, exception: BaseException) -> None:
        """Called with what ends `fit` early, KeyboardInterrupt among it."""

    def on_fit_end(self, trainer: Any) -> None:
        """Called after the last evaluation."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""


class Monitor(Callback):
    """A callback that looks at one metric of the evaluations.

    monitor: its name, as in metrics.jsonl; None is that of the Trainer. mode: whether smaller ("min") or larger ("max")
    is better; None takes "max" for accuracy, mean_iou and r2, "min" for any other name.
    """

    def __init__(self, monitor: str | None, mode: Mode | None):
        check_choice(type(self).__name__, "mode", mode, "min", "max", None)
        self._monitor, self._mode, self._default = monitor, mode, "val_loss"

    def follow(self, monitor: str) -> None:
        """Look at this metric, unless it has one of its own."""
        self._default = monitor

    @property
    def monitor(self) -> str:
        """The name of the metric."""
        return self._default if self._monitor is None else self._monitor

    @property
    def mode(self) -> Mode:
        """Whether smaller or larger is better."""
        return BETTER.get(self.monitor, "min") if self._mode is None else self._mode

    def value(self, trainer: Any) -> float:
        """The metric of the last evaluation. Raises ArgumentError if it has none of this name."""
        found = trainer.callback_metrics
        if self.monitor not in found:
            needs = f"monitor to be a metric of the evaluations, {', '.join(found)}"
            raise ArgumentError(type(self).__name__, needs, repr(self.monitor))
        return float(found[self.monitor])

    def is_better(self, value: float, than: float, by: float = 0.0) -> bool:
        """Whether `value` is better than another by more than `by`; NaN never is."""
        return than - value > by if self.mode == "min" else value - than > by

    @property
    def worst(self) -> float:
        """A value that every other one is better than."""
        return math.inf if self.mode == "min" else -math.inf


class EarlyStopping(Monitor):
    """Ends the training once a metric has not improved in `patience` evaluations.

    monitor, mode: by default the metric of the Trainer, see Monitor. min_delta: a change of no more than this is no
    improvement. stopped_step: the update after which it ended the training, 0 if it did not.
    """

    def __init__(
        self, monitor: str | None = None, min_delta: float = 0.0, patience: int = 3, *, mode: Mode | None = None
    ):
        super().__init__(monitor, mode)
        if patience < 1 or not min_delta >= 0:
            raise ArgumentError("EarlyStopping", "patience from 1 and min_delta from 0", f"{patience} and {min_delta}")
        self.min_delta, self.patience = min_delta, patience
        self._best: float | None = None
        self.wait_count, self.stopped_step = 0, 0

    @property
    def best_score(self) -> float:
        """The best value so far; infinitely bad before the first."""
        return self.worst if self._best is None else self._best

    @property
    def reason(self) -> str:
        """Why it ends the training."""
        name = "validation loss" if self.monitor == "val_loss" else self.monitor
        better = "smaller" if self.mode == "min" else "larger"
        return f"no {better} {name} in {self.patience} evaluations"

    def on_validation_end(self, trainer: Any) -> None:
        """Count the evaluations without an improvement."""
        value = self.value(trainer)
        if self.is_better(value, self.best_score, self.min_delta):
            self._best, self.wait_count = value, 0
        else:
            self.wait_count += 1
        self._stop(trainer)

    def on_load_checkpoint(self, trainer: Any, checkpoint: Mapping[str, Any]) -> None:
        """Stay stopped, unless `patience` has grown."""
        self._stop(trainer)

    def _stop(self, trainer: Any) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop, self.stopped_step = True, trainer.done

    def state_dict(self) -> dict[str, Any]:
        """The best value, and the evaluations since."""
        return {"best_score": self.best_score, "wait_count": self.wait_count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        need_keys("EarlyStopping.load_state_dict", state, ("best_score", "wait_count"))
        self._best, self.wait_count = state["best_score"], state["wait_count"]


class ModelCheckpoint(Monitor):
    """Which checkpoints are written and kept: those of the `save_top_k` best evaluations, and the `keep` newest.

    monitor, mode: by default the metric of the Trainer, see Monitor. every_n_train_steps: updates between checkpoints;
    None writes one after each evaluation. The end, a best evaluation and Ctrl-C always leave one. dirpath: where, by
    default `checkpoints/` of the run's directory.
    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        *,
        monitor: str | None = None,
        mode: Mode | None = None,
        save_top_k: int = 1,
        every_n_train_steps: int | None = None,
        keep: int = 2,
    ):
        super().__init__(monitor, mode)
        if min(save_top_k, keep, 1 if every_n_train_steps is None else every_n_train_steps) < 1:
            got = f"{save_top_k}, {every_n_train_steps} and {keep}"
            raise ArgumentError("ModelCheckpoint", "save_top_k, every_n_train_steps and keep from 1", got)
        self.dirpath, self.save_top_k, self.keep = None if dirpath is None else Path(dirpath), save_top_k, keep
        self.every_n_train_steps = every_n_train_steps
        self.top: list[tuple[int, float]] = []  # (step, value) of the best evaluations, best first

    def on_validation_end(self, trainer: Any) -> None:
        """Rank the evaluation; of equal ones the first is better."""
        value = self.value(trainer)
        if math.isnan(value):
            return
        at = sum(not self.is_better(value, other) for _, other in self.top)
        self.top = [*self.top[:at], (trainer.done, value), *self.top[at:]][: self.save_top_k]

    @property
    def steps(self) -> list[int]:
        """The steps of the best evaluations."""
        return [step for step, _ in self.top]

    @property
    def best_model_score(self) -> float | None:
        """The best value of the metric so far."""
        return self.top[0][1] if self.top else None

    @property
    def best_model_path(self) -> str:
        """The file of the best value, which `ampkit.load` reads and `ckpt_path` takes; "" if there is none."""
        steps = [f"step-{step:08d}-*.safetensors" for step in self.steps[:1]]
        found = [path for name in steps for path in (self.dirpath.glob(name) if self.dirpath else ())]
        return str(found[0]) if found else ""

    def state_dict(self) -> dict[str, Any]:
        """The best evaluations."""
        return {"top": [list(each) for each in self.top]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        need_keys("ModelCheckpoint.load_state_dict", state, ("top",))
        self.top = [(int(step), float(value)) for step, value in state["top"]][: self.save_top_k]


def check(callbacks: Iterable[Any]) -> None:
    """Raises ArgumentError for what is no Callback, and for a hook that does not take what it is called with."""
    for each in callbacks:
        if not isinstance(each, Callback):
            kind = isinstance(each, type) and issubclass(each, Callback)
            cure = f"create it: {each.__name__}()" if kind else "derive its class from ampkit.Callback"
            raise ArgumentError("Trainer", "callbacks to be ampkit.Callbacks", repr(each), cure=cure)
        for hook in (name for name in vars(Callback) if name.startswith("on_")):
            names = list(inspect.signature(getattr(Callback, hook)).parameters)[1:]  # without self
            own = inspect.signature(getattr(each, hook))
            try:
                own.bind(*names)
            except TypeError:
                needs = f"the arguments ({', '.join(names)})"
                raise ArgumentError(f"{type(each).__name__}.{hook}", needs, _names(own)) from None


def _names(signature: inspect.Signature) -> str:
    return f"({', '.join(signature.parameters)})"


def states(callbacks: tuple[Callback, ...]) -> dict[str, Any]:
    """The states of callbacks by the names of their classes, a second one of a class numbered."""
    return {name: each.state_dict() for name, each in _named(callbacks).items()}


def load_states(callbacks: tuple[Callback, ...], found: Mapping[str, Any]) -> None:
    """Load a `states`; a callback that was not there keeps its own."""
    for name, each in _named(callbacks).items():
        if found.get(name):
            each.load_state_dict(found[name])


def _named(callbacks: tuple[Callback, ...]) -> dict[str, Callback]:
    kinds = [type(each).__qualname__ for each in callbacks]
    earlier = [kinds[:at].count(kind) for at, kind in enumerate(kinds)]
    return {f"{kind}-{n}" if n else kind: each for kind, n, each in zip(kinds, earlier, callbacks, strict=True)}
