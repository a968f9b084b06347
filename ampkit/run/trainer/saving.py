"""A training that checkpoints save: what they hold, and the callbacks that take part in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from ... import backends
from ...core.saved_state import need_keys
from ...distributed.optim import ZeroRedundancyOptimizer
from ..checkpoint import Checkpoints, need_counts
from ..ranks import Ranks, has_parts, whole
from ..training_state import TrainingState
from .callbacks import Callback, EarlyStopping, ModelCheckpoint, load_states, states

FAILED = 3  # the code of a rank that has an error, above all others


@dataclass(frozen=True)
class Settings:
    """How a loop trains; the names, and their meaning, are those of a recipe's [train] section.

    device: of the model. compile: record a step once and replay it. compile_mode: of `ampkit.compile`.
    """

    device: str = "cpu"
    accumulate: int = 1
    grad_clip: float | None = None
    log_every: int = 10
    eval_every: int | None = None
    checkpoint_every: int | None = None
    compile: bool = False
    compile_mode: str = "default"


class SavedTraining(TrainingState):
    """A TrainingState with its callbacks and checkpoints; see TrainingLoop for its attributes."""

    def __init__(
        self,
        parts: tuple[Any, ...],
        settings: Settings,
        steps: int | None,
        ranks: Ranks,
        callbacks: Sequence[Callback],
        checkpoints: Checkpoints | None,
    ):
        super().__init__(*parts)
        self.settings, self.steps, self.ranks = settings, steps, ranks
        self.callbacks, self.checkpoints = tuple(callbacks), checkpoints
        self.checkpointing = next(each for each in self.callbacks if isinstance(each, ModelCheckpoint))
        self.before_saving: Callable[[], Mapping[str, Any] | None] = lambda: None
        self.should_stop = False
        self._device, self._saved = backends.get(settings.device), (0, 0)
        self._error: Exception | None = None  # of this rank, which the others do not know of yet

    def data_state(self) -> dict[str, Any]:
        """What a checkpoint holds of the data."""
        raise NotImplementedError

    def rank_state(self) -> dict[str, Any] | None:
        """What a checkpoint of several ranks holds of each of them; None where all have what rank 0 has."""
        return None

    @property
    def recipe_values(self) -> dict[str, Any]:
        """The recipe, as checkpoints hold it; {} for a training without one."""
        return {}

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a hook of every callback, between two steps."""
        for callback in self.callbacks:
            if self._error is None:
                with self._saved_on_error(f"{type(callback).__name__}.{hook}"):
                    getattr(callback, hook)(self, *arguments)

    @contextmanager
    def _saved_on_error(self, who: str) -> Iterator[None]:
        """Where the block raises, save the state first, and let a note of the error say who raised it and when.

        On several ranks the next `_agree` does so, as all of them must save.
        """
        try:
            yield
        except Exception as error:
            self._failed(who, error)
            if self.ranks.size == 1:
                self._raise()

    def _failed(self, who: str, error: Exception) -> None:
        error.add_note(f"raised by {who}, after step {self.done}")
        self._error = error

    def _agree(self, code: int = 0) -> int:
        """The largest `code` of the ranks. Where one has an error, all save the last whole step and raise it."""
        found = self.ranks.most(FAILED if self._error is not None else code)
        if found == FAILED:
            self._raise()
        return found

    def _raise(self) -> NoReturn:
        error, self._error = self._error, None
        try:
            self.save()
        except Exception as of_saving:
            raise of_saving from error
        first = self.ranks.first_error(error)
        assert first is not None
        raise first

    @property
    def best(self) -> tuple[int, float] | None:
        """(step, value) of the best evaluation so far, or None; its checkpoint is kept."""
        return self.checkpointing.top[0] if self.checkpointing.top else None

    @property
    def early_end(self) -> str:
        """That the training ended before its last step, after which step, and why; "" if it did not."""
        if not self.should_stop or self.done == self.steps:
            return ""
        said = f"ended early, after step {self.done}" + ("" if self.steps is None else f" of {self.steps}")
        stopping = (each for each in self.callbacks if isinstance(each, EarlyStopping) and each.stopped_step)
        return next((f"{said}: {each.reason}" for each in stopping), said)

    def save(self) -> None:
        """Save a checkpoint if there is a directory for them, unless this very state was saved already."""
        self._device.synchronize()
        if self.checkpoints is not None and self._saved != (self.done, self.evaluated):
            state = self._whole_state()
            own = self.ranks.agreed(self.rank_state) if self.ranks.size > 1 else None
            by_rank = {} if own is None else {"ranks": self.ranks.gathered(own)}
            self.ranks.agreed(lambda: self._write_checkpoint(state, by_rank))
            self._saved = (self.done, self.evaluated)

    def _whole_state(self) -> dict[str, Any] | None:
        """On rank 0 the state, of whole tensors, where the ranks have it together; else None."""
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            group = self.optimizer.process_group
            self.optimizer.consolidate_state_dict(group.ranks[0])
            if group.rank():
                return None
        return whole(self.state_dict()) if has_parts(self.model) else None

    def _write_checkpoint(self, whole_state: dict[str, Any] | None, by_rank: dict[str, Any]) -> None:
        if self.checkpoints is not None and self.ranks.rank == 0:
            rows, state = self.before_saving(), self.state_dict() if whole_state is None else whole_state
            state |= by_rank
            for callback in self.callbacks:
                callback.on_save_checkpoint(self, state)
            self.checkpoints.save(self.done, state, self.recipe_values, rows, self.checkpointing.steps)

    def state_dict(self) -> dict[str, Any]:
        """The state between two steps, from which `load_state_dict` continues bit for bit."""
        batches = self.done * self.settings.accumulate  # consumed; prefetched ones do not count
        best = None if self.best is None else list(self.best)
        counts = {"steps": self.steps, "batches": batches, "best": best}
        return {**self.snapshot(), **counts, "data": self.data_state(), "callbacks": states(self.callbacks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same training; another number of steps brings its own schedule.

        Raises ArgumentError, StateError or DTypeError, with nothing changed, for a state of another run.
        """
        where = f"{type(self).__name__}.load_state_dict"
        need_keys(where, state, ("steps", "batches", "counts"))
        steps, counts = state["steps"], need_counts(where, state["counts"])
        self.check_state(where, state, counts["done"])
        self.restore(state, same_length=steps == self.steps)
        self._saved, best = (self.done, self.evaluated), state.get("best")  # which older checkpoints lack
        self.checkpointing.top = [] if best is None else [(best[0], best[1])]
        self.should_stop = False
        load_states(self.callbacks, state.get("callbacks", {}))
        self.call("on_load_checkpoint", state)

    def check_state(self, where: str, state: Mapping[str, Any], done: int) -> None:
        """Raise ArgumentError for a state that is not of this training."""
