"""What of a run survives a resume: the objects that are trained, and how far they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import nn
from ..amp.grad_scaler import GradScaler
from ..optim.adam.schedule_free import averaged, begin_training
from .checkpoint import need_counts, restore, state_of


class TrainingState:
    """What a checkpoint holds of a run, with the default random stream. All else of a run follows from its recipe.

    model, optimizer, schedule, scaler: the objects being trained with. average: the moving average of the weights, an
    AveragedModel, or None. done: the updates so far. evaluated: how many were done at the last evaluation. skipped: how
    many of them overflowed. seconds: of training so far, without evaluations.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any, schedule: Any, scaler: GradScaler, average: nn.Module | None = None
    ):
        self.model, self.optimizer, self.schedule, self.scaler = model, optimizer, schedule, scaler
        self.average: Any = average
        self.done, self.evaluated, self.skipped, self.seconds = 0, 0, 0, 0.0

    def snapshot(self) -> dict[str, Any]:
        """The state between two steps, for `restore`.

        Of an AdamWScheduleFree it is that of its eval mode: the weights are those that are evaluated and used later.
        """
        average = {} if self.average is None else {"average": self.average.state_dict()}
        counts = {name: getattr(self, name) for name in ("done", "evaluated", "skipped", "seconds")}
        with averaged(self.optimizer) as switched:
            state = state_of(self.model, self.optimizer, self.schedule, self.scaler)
            if switched:  # the tensors of the model are not copies
                state["model"] = {name: tensor.clone() for name, tensor in state["model"].items()}
        return {**state, **average, "counts": counts}

    def restore(self, state: Mapping[str, Any], same_length: bool = True) -> None:
        """Load a `snapshot`. Without same_length the schedule keeps the constants of its constructor.

        Raises StateError, ArgumentError or DTypeError, with nothing changed, for a state of another form or of others.
        """
        counts = need_counts("restore", state["counts"])
        parts = self.model, self.optimizer, self.schedule, self.scaler
        restore(state, *parts, same_length=same_length, average=self.average)
        begin_training(self.optimizer)
        self.done, self.evaluated, self.skipped = counts["done"], counts["evaluated"], counts["skipped"]
        self.seconds = counts["seconds"]
