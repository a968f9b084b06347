"""Training: a whole run from a recipe. It gives back what happened and prints nothing; so do `step` and `evaluate`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import backends
from ..backends.cpu.malloc import keep_freed
from ..backends.cpu.threads import can_set_num_threads, get_num_threads, set_num_threads
from ..base.errors import ArgumentError, NonFiniteError
from ..capture import compile, shared_memory
from ..config import Recipe, continued
from ..core import random
from ..core.saved_state import is_number, need_count, need_keys
from ..core.tensor import Tensor
from . import build
from .checkpoint import Checkpoint, Checkpoints, restore, state_of
from .input_pipeline import input_pipeline
from .step import Batch, StepResult, evaluate, objective_of, step


@dataclass(frozen=True)
class StepRow:
    """A logged step.

    step: its number, from 1. loss: the mean over its batches. lr: the learning rate it used. scale: the loss scale
    after it, 1 where none is at work. skipped: steps skipped so far. grad_norm: before clipping. seconds: of training
    so far, evaluations left out.
    """

    step: int
    loss: float
    lr: float
    scale: float
    skipped: int
    grad_norm: float
    seconds: float


@dataclass(frozen=True)
class EvalRow:
    """An evaluation after `step` steps: the scores of its task, see `metrics.Scores`."""

    step: int
    val_loss: float
    accuracy: float | None = None
    mean_iou: float | None = None
    char_error_rate: float | None = None


Row = StepRow | EvalRow


class _StoppedError(Exception):
    """An evaluation that was told to stop."""


class Run:
    """A recipe made ready to train: everything is built and checked, nothing has been learned.

    Iterating trains, and yields rows as they come to be; it goes on from where it was left.
    recipe: what it was given, and the number of threads, on which the last bits of sums depend.
    steps: how many updates it will make; done: how many it has made. per_step, unit: what an update sees, samples or
    tokens. model, optimizer, schedule, scaler: its parts. average: of the weights, if train.ema asks for one; then
    evaluations are of average.module.
    checkpoints: where it leaves them, or None; before_saving is called before each, when all rows have been handed on,
    and returns what the checkpoint is to record of them. resumed: the checkpoint that it goes on from, without its
    state, or None.
    """

    def __init__(self, recipe: Recipe, checkpoints: Checkpoints | None = None):
        keep_freed()
        if can_set_num_threads():
            threads = recipe.train.threads or get_num_threads()
            set_num_threads(threads)
            recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"threads": threads})})
        random.manual_seed(recipe.train.seed)
        self.recipe, self._pipeline, self._region = recipe, input_pipeline(recipe), build.region(recipe)
        self._objective, self.steps = objective_of(recipe.model), build.steps(recipe, self._pipeline)
        self.per_step, self.unit = self._pipeline.samples_per_batch * recipe.train.accumulate, self._pipeline.unit
        self.model = build.model(recipe)
        self.optimizer = build.optimizer(recipe, self.model)
        self.average = build.average(recipe, self.model)
        self.schedule = build.schedule(recipe, self.optimizer, self.steps)
        self.scaler = build.scaler(recipe)
        self.done, self.evaluated, self.skipped, self.seconds = 0, 0, 0, 0.0
        self.checkpoints, self.stopping = checkpoints, False
        self.before_saving: Callable[[], Mapping[str, Any] | None] = lambda: None
        self.resumed: Checkpoint | None = None
        self._batches, self._saved = self._pipeline.train(0), (0, 0)
        self._device = backends.get(recipe.train.device)
        self._update = compile(self._advance) if recipe.train.compile else self._advance
        self._records = recipe.train.compile and hasattr(self._device, "graph")

    def __iter__(self) -> Iterator[Row]:
        while not self.finished:
            row = self._evaluate() if self._owes_evaluation() else self._step(self.done + 1)
            if row is not None:
                yield row
                self._check(row)
            stopping = self.stopping  # looked at once: Ctrl-C may come at any moment, also in these lines
            if stopping or self._due():
                self.save()
            if stopping:
                return

    def stop(self) -> None:
        """End the iteration after the step under way, or in the middle of an evaluation, with a checkpoint."""
        self.stopping = True

    @property
    def finished(self) -> bool:
        """Whether every step, and the evaluation after the last, is done."""
        return self.done >= self.steps and not self._owes_evaluation()

    def _owes_evaluation(self) -> bool:
        every = self.recipe.train.eval_every
        wanted = self.done == self.steps or (every is not None and self.done % every == 0)
        return wanted and self.done > self.evaluated

    def _evaluate(self) -> EvalRow | None:
        try:
            model = self.model if self.average is None else self.average.module
            with shared_memory(self._device) if self._records else nullcontext():
                scores = evaluate(model, self._held_out(), self._region, self._objective)
            row = EvalRow(self.done, *scores)
        except _StoppedError:
            self.model.train()
            return None
        self.evaluated = self.done
        return row

    def _held_out(self) -> Iterator[Batch]:
        for batch in self._pipeline.held_out():
            if self.stopping:
                raise _StoppedError
            yield batch

    def _check(self, row: Row) -> None:
        if isinstance(row, EvalRow) and not math.isfinite(row.val_loss):
            where = f"evaluation after step {row.step}"
            raise self._not_finite(where, row.val_loss, self.recipe.optimizer.lr)
        if self.finished and self.skipped == self.steps:
            cure = "train longer, so that the loss scale finds its level, or begin lower: amp.init_scale=1024"
            raise NonFiniteError("training", "a step whose gradients are finite", f"{self.steps} skipped", cure)

    # checkpoints

    def _due(self) -> bool:
        every = self.recipe.train.checkpoint_every
        now = self.evaluated == self.done if every is None else self.done % every == 0
        return self.checkpoints is not None and (now or self.finished) and not self._owes_evaluation()

    def save(self) -> None:
        """Leave a checkpoint, where the run has a place for them, unless there is one of just this moment."""
        self._device.synchronize()
        if self.checkpoints is not None and self._saved != (self.done, self.evaluated):
            rows = self.before_saving()
            self.checkpoints.save(self.done, self.state_dict(), self.recipe.model_dump(mode="json"), rows)
            self._saved = (self.done, self.evaluated)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on bit for bit; between two steps."""
        counts = {name: getattr(self, name) for name in ("done", "evaluated", "skipped", "seconds")}
        batches = self.done * self.recipe.train.accumulate  # those consumed, however many were fetched ahead
        average = {} if self.average is None else {"average": self.average.state_dict()}
        return {**state_of(*self._parts()), **average, "steps": self.steps, "batches": batches, "counts": counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a run of the same recipe; with another number of steps, on the schedule of that.

        Raises ArgumentError, StateError or DTypeError, with nothing changed, for a state that does not fit.
        """
        where = "Run.load_state_dict"
        need_keys(where, state, ("steps", "batches", "counts"))
        steps, counts = need_count(where, "steps", state["steps"], 1), _need_counts(where, state["counts"])
        if state["batches"] != (batches := counts["done"] * self.recipe.train.accumulate):
            raise ArgumentError(where, f"{batches} batches after {counts['done']} steps", repr(state["batches"]))
        restore(state, *self._parts(), same_length=steps == self.steps, average=self.average)
        self._batches = self._pipeline.train(batches)
        self.done, self.evaluated, self.skipped = counts["done"], counts["evaluated"], counts["skipped"]
        self.seconds = counts["seconds"]
        self._saved = (self.done, self.evaluated)

    def _parts(self) -> tuple[Any, ...]:
        return self.model, self.optimizer, self.schedule, self.scaler

    # a step

    def _step(self, number: int) -> StepRow | None:
        start = time.perf_counter()
        logged = number % self.recipe.train.log_every == 0 or number in (1, self.steps)
        lr = float(self.optimizer.param_groups[0]["lr"]) if logged else math.nan
        batches = [next(self._batches) for _ in range(self.recipe.train.accumulate)]
        outcome = self._update(batches, logged or self._records)  # a recorded step always measures: one recording
        self.schedule.step()
        self.done = number
        self._device.call_when_ready((outcome.loss.array, outcome.skipped.array), partial(self._saw, number))
        if logged:
            self._device.synchronize()
        self.seconds += time.perf_counter() - start
        if not logged:
            return None
        assert outcome.grad_norm is not None
        scale, norm = float(self.scaler.get_scale()), float(outcome.grad_norm)
        return StepRow(number, float(outcome.loss), lr, scale, self.skipped, norm, self.seconds)

    def _advance(self, batches: Sequence[Batch], measure: bool) -> StepResult:
        clip = self.recipe.train.grad_clip
        outcome = step(self._loss, batches, self.optimizer, self.scaler, self._region, clip, measure)
        if self.average is not None:
            self.average.update_parameters(self.model)
        return outcome

    def _saw(self, number: int, loss: float, skipped: bool) -> None:
        # Of every step, at once on a CPU; on a device that runs ahead, when a later step finds it done.
        self.skipped += skipped
        if not math.isfinite(loss) and not self.scaler.is_enabled():
            raise self._not_finite(f"step {number}", loss, float(self.optimizer.param_groups[0]["lr"]))

    def _loss(self, inputs: Tensor, *targets: Tensor) -> Tensor:
        return self._objective.loss(self.model(inputs), *targets)

    def _not_finite(self, where: str, loss: float, lr: float) -> NonFiniteError:
        cure = f"lower optimizer.lr (it was {lr:g}), clip the gradients with train.grad_clip=1.0"
        if self.recipe.amp.dtype != "float32":
            cure += ", or see whether amp.dtype=float32 is finite"
        return NonFiniteError(f"{where}, {self.recipe.amp.dtype}", "a finite loss", f"{loss}", cure)


def _need_counts(where: str, counts: Any) -> dict[str, Any]:
    need_keys(where, counts, ("done", "evaluated", "skipped", "seconds"), exactly=True)
    done = need_count(where, "done", counts["done"])
    for name in ("evaluated", "skipped"):
        need_count(where, name, counts[name], 0, done)
    if not is_number(counts["seconds"]) or counts["seconds"] < 0:
        raise ArgumentError(where, "seconds as a number from 0", repr(counts["seconds"]))
    return dict(counts)


def fit(recipe: Recipe, checkpoints: str | Path | None = None, resume: bool = False) -> Run:
    """A run of `recipe`, built and checked; iterate over it to train: `for row in ampkit.run.loop.fit(recipe)`.

    The same recipe gives the same numbers on the same machine. amp.dtype float32 runs without autocast, bfloat16 with
    autocast, float16 with autocast and loss scaling. Evaluations run in the recipe's precision.
    checkpoints: a directory to leave them in, as train.checkpoint_every and train.keep say; none by default. resume: go
    on from the last whole one there, bit for bit, or begin if there is none; its recipe may differ in how long, how
    often and where (`config.continued`).
    Raises ConfigError, ArgumentError or DeviceError at once for a recipe that cannot run here, and ConfigError or
    FileError for checkpoints that it cannot go on from; while it trains, NonFiniteError if an evaluation is not finite,
    or a training loss in float32 or bfloat16 (in float16 that skips the step); ScaleCollapseError if float16 finds no
    scale.
    """
    if checkpoints is None:
        return Run(recipe)
    place = Checkpoints(checkpoints, recipe.train.keep)
    last = place.last() if resume else None
    if last is None:
        return Run(recipe, place)
    run = Run(continued(recipe, last.recipe), place)
    run.load_state_dict(last.state)
    run.resumed = last._replace(state=None)
    return run
