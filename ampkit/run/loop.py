"""The training loop: a whole run of a recipe, as an iterator over its rows. Nothing here prints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

from .. import backends, nn
from ..backends.cpu.malloc import keep_freed
from ..backends.cpu.threads import can_set_num_threads, get_num_threads, set_num_threads
from ..base import observe
from ..base.errors import ArgumentError, ConfigError, NonFiniteError, ScaleCollapseError
from ..config import Recipe, continued
from ..core import random
from ..core.autograd.grad_mode import is_grad_enabled
from ..core.capture.compiled import compile, shared_memory
from ..core.saved_state import need_count, need_keys
from ..core.tensor import Tensor
from ..debug.peak_memory import peak_of_device
from ..debug.repeat.learning_rate import Training
from ..distributed.environment import launched
from . import build
from .checkpoint import Checkpoint, Checkpoints, need_counts
from .guard import Explanation, Guard, Replay, not_finite
from .input_pipeline import input_pipeline
from .ranks import Ranks, code_checksum
from .retraining import training_of
from .step import Batch, StepMeasures, evaluate, objective_of, step
from .training_state import TrainingState


@dataclass(frozen=True)
class StepRow:
    """The metrics of a logged step.

    step: its number, from 1. loss: the mean over its batches. lr: the learning rate it used. scale: the loss scale
    after it, 1 without loss scaling. skipped: steps skipped so far. grad_norm: before clipping. seconds: of training so
    far, without evaluations. memory: the peak so far in bytes, on a GPU of arrays, on a CPU of the process; None where
    the system does not tell.
    """

    step: int
    loss: float
    lr: float
    scale: float
    skipped: int
    grad_norm: float
    seconds: float
    memory: int | None = None


@dataclass(frozen=True)
class EvalRow:
    """The scores of an evaluation after `step` steps, see `metrics.Scores`."""

    step: int
    val_loss: float
    accuracy: float | None = None
    mean_iou: float | None = None
    char_error_rate: float | None = None


Row = StepRow | EvalRow


class _StoppedError(Exception):
    """An evaluation was asked to stop."""


class Run(TrainingState):
    """A training run, built and checked. Iterating trains and yields the rows; a new iteration continues.

    What it trains, and how far it is, are the attributes of TrainingState: they survive a resume, all others follow
    from the recipe, the ranks and the caller. With train.ema, evaluations use `average.module`.
    recipe: the recipe, with the number of threads, on which the last bits of sums depend. steps: the updates in total.
    per_step: samples or tokens (`unit`) in an update. region: the context of forwards, autocast or none. checkpoints:
    where they are saved, or None. before_saving: called before each, once all rows were yielded; returns the state of
    the metrics log to record. best: (step, val_loss) of the evaluation with the least loss so far, or None; its
    checkpoint is kept. notice: called with what the user should know while the run goes on: why float16 skips
    steps that no scale cures. resumed: the checkpoint that the run continues from, without its state, or None. ranges:
    with debug.ranges_every.
    """

    def __init__(self, recipe: Recipe, checkpoints: Checkpoints | None = None, ranks: Ranks | None = None):
        keep_freed()
        self.ranks = ranks or Ranks.present()
        recipe = _on_this_rank(recipe, self.ranks)
        random.manual_seed(recipe.train.seed)
        self.recipe, self._pipeline = recipe, input_pipeline(recipe, self.ranks)
        self._objective, self.steps = objective_of(recipe.model), build.steps(recipe, self._pipeline)
        self.per_step, self.unit = self._pipeline.samples_per_batch * recipe.train.accumulate, self._pipeline.unit
        model = build.model(recipe)
        self.region = build.region(recipe, model)
        self.ranges = build.ranges(recipe, model)
        optimizer = build.optimizer(recipe, model)
        average = build.average(recipe, model)
        schedule = build.schedule(recipe, optimizer, self.steps)
        super().__init__(model, optimizer, schedule, build.scaler(recipe), average)
        self.ranks.draw_apart()
        self.checkpoints, self.stopping = checkpoints, False
        self.before_saving: Callable[[], Mapping[str, Any] | None] = lambda: None
        self.notice: Callable[[str], None] = lambda text: None
        self.resumed: Checkpoint | None = None
        self._replica, self._joined = self.model, False  # the model whose gradients are averaged over the ranks
        self.best: tuple[int, float] | None = None
        self._batches, self._saved = self._pipeline.train(0), (0, 0)
        self._device = backends.get(recipe.train.device)
        self._guard, self._replay = Guard(recipe.train.device), Replay(self)
        self._update = _compiled(ref(self)) if recipe.train.compile else None
        self._records = recipe.train.compile and hasattr(self._device, "graph")

    def __iter__(self) -> Iterator[Row]:
        self._join()
        while not self.finished:
            row = self._evaluate() if self._evaluation_is_due() else self.advance()
            if row is not None:
                yield row
                self._check(row)
            stopping = self.ranks.any(self.stopping)  # read once: Ctrl-C may come at any moment, also in these lines
            self.stopping |= stopping
            if stopping or self._checkpoint_is_due():
                self.save()
            if stopping:
                return

    def first_batch(self) -> Batch:
        """The first batch of the training data: inputs and targets. The run and its random numbers do not advance."""
        state = random.get_rng_state()
        try:
            return next(self._pipeline.train(0))
        finally:
            random.set_rng_state(state)

    def stop(self) -> None:
        """End the iteration after the current step, or in the middle of an evaluation, with a checkpoint."""
        self.stopping = True

    @property
    def finished(self) -> bool:
        """Whether every step, and the evaluation after the last, is done."""
        return self.done >= self.steps and not self._evaluation_is_due()

    def _evaluation_is_due(self) -> bool:
        every = self.recipe.train.eval_every
        wanted = self.done == self.steps or (every is not None and self.done % every == 0)
        return wanted and self.done > self.evaluated

    def _evaluate(self) -> EvalRow | None:
        try:
            model = self.model if self.average is None else self.average.module
            self.ranks.copy_buffers(model)
            with shared_memory(self._device) if self._records else nullcontext():
                scores = evaluate(model, self._held_out(), self.region, self._objective, self.ranks)
            row = EvalRow(self.done, *scores)
        except _StoppedError:
            self.model.train()
            return None
        self.evaluated = self.done
        if self.best is None or row.val_loss < self.best[1]:
            self.best = self.done, row.val_loss
        return row

    def _held_out(self) -> Iterator[Batch]:
        for batch in self._pipeline.held_out():
            if self.stopping:
                break
            yield batch
        if self.ranks.any(self.stopping):
            raise _StoppedError

    def _check(self, row: Row) -> None:
        if isinstance(row, EvalRow) and not math.isfinite(row.val_loss):
            where = f"evaluation after step {row.step}"
            model = self.model if self.average is None else self.average.module
            why = self._replay.evaluation(model, self._pipeline.held_out())
            raise self._not_finite(where, f"{row.val_loss}", self.recipe.optimizer.lr, why)
        if self.finished and self.skipped == self.steps:
            cure = "train longer, so that the loss scale can settle, or start lower: amp.init_scale=1024"
            why = self._replay.step(self.done)
            raise not_finite("training", "a step whose gradients are finite", f"{self.steps} skipped", why, cure)

    def _join(self) -> None:
        """Begin to train with the other ranks, which must have the same recipe, code and number of steps done."""
        if self._joined:
            return
        if self.ranks.size > 1:
            self.ranks.need_same({"steps done": str(self.done), "code": code_checksum(), **_values(self.recipe)})
        self._replica, self._joined = self.ranks.replicate(self.model, **build.parallel(self.recipe)), True

    # checkpoints

    def _checkpoint_is_due(self) -> bool:
        every = self.recipe.train.checkpoint_every
        best = self.best is not None and self.best[0] == self.done
        now = best or (self.evaluated == self.done if every is None else self.done % every == 0)
        return self.checkpoints is not None and (now or self.finished) and not self._evaluation_is_due()

    def save(self) -> None:
        """Save a checkpoint if the run has a directory for them, unless this very state was saved already."""
        self._device.synchronize()
        if self.checkpoints is not None and self._saved != (self.done, self.evaluated):
            self.ranks.agreed(self._write_checkpoint)
            self._saved = (self.done, self.evaluated)

    def _write_checkpoint(self) -> None:
        if self.checkpoints is not None and self.ranks.rank == 0:
            rows = self.before_saving()
            best = None if self.best is None else self.best[0]
            self.checkpoints.save(self.done, self.state_dict(), self.recipe.model_dump(mode="json"), rows, best)

    def state_dict(self) -> dict[str, Any]:
        """The state between two steps, from which `load_state_dict` continues bit for bit."""
        batches = self.done * self.recipe.train.accumulate  # consumed; prefetched ones do not count
        best = None if self.best is None else list(self.best)
        return {**self.snapshot(), "steps": self.steps, "batches": batches, "best": best, "data": self._pipeline.about}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of a run of the same recipe; another number of steps brings its own schedule.

        Raises ArgumentError, StateError or DTypeError, with nothing changed, for a state of another run.
        """
        where = "Run.load_state_dict"
        need_keys(where, state, ("steps", "batches", "counts"))
        steps, counts = need_count(where, "steps", state["steps"], 1), need_counts(where, state["counts"])
        if state["batches"] != (batches := counts["done"] * self.recipe.train.accumulate):
            raise ArgumentError(where, f"{batches} batches after {counts['done']} steps", repr(state["batches"]))
        self.restore(state, same_length=steps == self.steps)
        self.ranks.draw_apart()  # a checkpoint has the random state of rank 0
        self._batches = self._pipeline.train(batches)
        self._saved, best = (self.done, self.evaluated), state.get("best")  # which older checkpoints lack
        self.best = None if best is None else tuple(best)

    # a step

    def advance(self) -> StepRow | None:
        """Take the next step, whatever else is due; its row if it is logged."""
        self._join()
        return self._step(self.done + 1)

    def _step(self, number: int) -> StepRow | None:
        start = time.perf_counter()
        logged = number % self.recipe.train.log_every == 0 or number in (1, self.steps)
        lr = float(self.optimizer.param_groups[0]["lr"]) if logged else math.nan
        with observe.timed("next_batch"):
            batches = [next(self._batches) for _ in range(self.recipe.train.accumulate)]
        self._replay.keep(number, batches)
        ranges = self.ranges if self.ranges is not None and self.ranges.samples_step(number) else None
        # A recorded step shows no ops.
        update = self._train_step if ranges is not None or self._update is None else self._update
        try:
            with nullcontext() if ranges is None else ranges.step(number):
                result = update(batches, logged or self._records)  # the norm is always part of a recorded step
        except ScaleCollapseError as error:
            why = self._replay.step(number)
            what, _, cure = str(error).partition("\nhelp: ")
            raise ScaleCollapseError(f"{what}{why.account}", cure=why.cure or cure) from None
        self.schedule.step()
        self._device.call_when_ready((result.loss.array, result.skipped.array), partial(self._check_loss, number))
        self.done = number
        if logged:
            self._device.synchronize()
        self.seconds += time.perf_counter() - start
        if not logged:
            return None
        assert result.grad_norm is not None
        scale, norm = float(self.scaler.get_scale()), float(result.grad_norm)
        memory = peak_of_device(self.recipe.train.device)
        return StepRow(number, float(result.loss), lr, scale, self.skipped, norm, self.seconds, memory)

    def _train_step(self, batches: Sequence[Batch], measure_norm: bool) -> StepMeasures:
        clip = self.recipe.train.grad_clip
        what = (partial(self.loss_of, self._replica), batches, self.optimizer, self.scaler, self.region)
        result = step(*what, clip, measure_norm, self._guard, self.ranks)
        if self.average is not None:
            self.average.update_parameters(self.model)
        return result

    def _check_loss(self, number: int, loss: float, skipped: bool) -> None:
        # Called for every step: at once on a CPU, on an asynchronous device once a later step finds it done.
        if self.scaler.is_enabled():
            self.skipped += skipped
            if skipped and (text := self._replay.skipped(number, loss, self.scaler.monitor)):
                self.notice(text)
        elif skipped:
            got = f"{loss}" if not math.isfinite(loss) else "gradients that are not"
            why, lr = self._replay.step(number), float(self.optimizer.param_groups[0]["lr"])
            self._replay.undo(number)
            raise self._not_finite(f"step {number}", got, lr, why)
        self._replay.checked(number)

    def loss_of(self, model: nn.Module, inputs: Tensor, *targets: Tensor) -> Tensor:
        """The loss of a batch by `model`: the run's, or the average of its weights.

        On several ranks the last target of a training batch is the weight of this rank's part.
        """
        if self.ranks.size == 1 or not is_grad_enabled():
            return self._objective.loss(model(inputs), *targets)
        return self._objective.loss(model(inputs), *targets[:-1]) * targets[-1]

    @property
    def training(self) -> Training:
        """Trains the recipe from the beginning, for a few steps more than were done, with a factor for optimizer.lr."""
        return training_of(self, fit)

    def _not_finite(self, where: str, got: str, lr: float, why: Explanation) -> NonFiniteError:
        other = ", or see whether amp.dtype=float32 is finite" if self.recipe.amp.dtype != "float32" else ""
        cure = f"lower optimizer.lr (it was {lr:g}), clip the gradients with train.grad_clip=1.0{other}"
        return not_finite(f"{where}, {self.recipe.amp.dtype}", "a finite loss", got, why, cure)


def _compiled(run: ref[Run]) -> Any:
    """The run's steps, compiled; of a weak reference, as the run holds what this returns."""

    def train_step(batches: Sequence[Batch], measure_norm: bool) -> StepMeasures:
        held = run()
        assert held is not None
        return held._train_step(batches, measure_norm)

    return compile(train_step)


def _on_this_rank(recipe: Recipe, ranks: Ranks) -> Recipe:
    """The recipe with this rank's device and number of threads, which is set; ranks of a machine share its cores."""
    train = recipe.train
    update: dict[str, Any] = {}
    if ranks.size > 1 and train.device == "cuda":
        if train.compile and not ranks.on_devices:
            raise ConfigError("train.compile", "false on several ranks of GPUs without NCCL", "true")
        update["device"] = f"cuda:{launched().local_rank}"
    if can_set_num_threads():
        update["threads"] = ranks.threads(train.threads or 0, get_num_threads())
        set_num_threads(update["threads"])
    return recipe.model_copy(update={"train": train.model_copy(update=update)})


def _values(recipe: Recipe) -> dict[str, str]:
    """The values of a recipe by key, but those that a rank may have for itself."""
    sections = recipe.model_dump(mode="json")
    found = {f"{section}.{key}": repr(value) for section, keys in sections.items() for key, value in keys.items()}
    return {key: value for key, value in found.items() if key not in ("train.device", "train.threads")}


def fit(recipe: Recipe, checkpoints: str | Path | None = None, resume: bool = False, ranks: Ranks | None = None) -> Run:
    """A run of `recipe`, built and checked; iterate over it to train: `for row in ampkit.run.loop.fit(recipe)`.

    The same recipe gives the same numbers on the same computer. amp.dtype float32 runs without autocast, bfloat16 with
    autocast, float16 with autocast and loss scaling. Evaluations run in the recipe's precision.
    checkpoints: the directory to save them in, as train.checkpoint_every and train.keep say; none by default. resume:
    continue bit for bit from the newest intact one there, or start if there is none; its recipe may differ in length,
    intervals and device (`config.continued`). ranks: those that train it together, by default all of
    ampkit.distributed; rank 0 writes the checkpoints, and all of them read them.
    Raises ConfigError, ArgumentError or DeviceError at once for a recipe that cannot run here, and ConfigError or
    FileError for checkpoints that it cannot resume from; while it trains, NonFiniteError if an evaluation is not
    finite, or a training loss in float32 or bfloat16 (in float16 the step is skipped); ScaleCollapseError if float16
    finds no usable scale.
    """
    if checkpoints is None:
        return Run(recipe, ranks=ranks)
    saved = Checkpoints(checkpoints, recipe.train.keep)
    last = saved.last() if resume else None
    if last is None:
        return Run(recipe, saved, ranks)
    run = Run(continued(recipe, last.recipe), saved, ranks)
    run.load_state_dict(last.state)
    run.resumed = last._replace(state=None)
    return run
