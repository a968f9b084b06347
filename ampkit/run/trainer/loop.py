"""The training loop that recipes and `Trainer` share: steps, evaluations, checkpoints, in their order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

from ... import nn
from ...amp.precisions import Precisions, precisions
from ...base import observe
from ...base.errors import NonFiniteError, ScaleCollapseError
from ...core.capture.compiled import compile, shared_memory
from ...core.tensor import Tensor
from ...debug.peak_memory import peak_of_device
from ...debug.repeat.learning_rate import Training
from ...distributed import DistError
from ...distributed.deterministic import DeterministicDataParallel
from ...distributed.fsdp import unsharded
from ...distributed.pipelining.model_stage import ModelStage, whole_model
from ...optim.adam.schedule_free import averaged, begin_training, end_training
from ..checkpoint import Checkpoint, Checkpoints
from ..guard import Explanation, Guard, Replay, not_finite
from ..ranks import Ranks
from ..step import Batch, StepMeasures, step, update
from .batches import BatchedTraining, DataEndedError
from .callbacks import Callback
from .rows import EvalRow, Row, StepRow
from .saving import FAILED
from .saving import Settings as Settings

_STOPPING = 1  # the code of a rank that was asked to stop


class StoppedError(Exception):
    """An evaluation ends before its end, on all ranks."""


class TrainingLoop(BatchedTraining):
    """A training, built and checked. Iterating trains and yields the rows; a new iteration continues.

    What it trains, and how far it is, are the attributes of TrainingState: they survive a resume, all others follow
    from the arguments. With an average, evaluations use `average.module`.
    region: the context of forwards, autocast or none. settings: see Settings. steps: the updates in total, None if only
    the end of the data tells. callbacks: called in their order, a ModelCheckpoint among them, which says which
    checkpoints are kept. checkpoints: where they are saved, or None.
    before_saving: called before each, once all rows were yielded; returns the state of the metrics log to record.
    callback_metrics: the newest value of each metric. should_stop: set by callbacks to end the training after an
    evaluation. notice: called with what the user should know while it goes on: why float16 skips steps that no scale
    cures. resumed: the checkpoint that it continues from, without its state, or None. ranges: what samples those of the
    layers, or None.
    """

    ranges: Any = None
    wire_dtype: str = "float32"  # in which the ranks average gradients
    unit, per_step = "updates", 1  # what a rate counts, and how many of them an update has
    lower_scale = "scaler=ampkit.GradScaler(init_scale=1024)"  # what begins with a lower loss scale

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        schedule: Any,
        scaler: Any,
        average: Any,
        region: AbstractContextManager[Any],
        settings: Settings,
        steps: int | None,
        ranks: Ranks,
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
    ):
        super().__init__((model, optimizer, schedule, scaler, average), settings, steps, ranks, callbacks, checkpoints)
        self.region, self.stopping = region, False
        self.callback_metrics: dict[str, float] = {}
        self.notice: Callable[[str], None] = lambda text: None
        self.resumed: Checkpoint | None = None
        self._replica, self._joined = self.model, False  # the model whose gradients are averaged over the ranks
        self._deterministic: DeterministicDataParallel | None = None  # or what computes them
        self._stage: ModelStage | None = None  # or what this rank computes of it
        self._guard, self._replay = Guard(settings.device), Replay(self)
        self._update = _compiled(ref(self), settings.compile_mode, self._kernels()) if settings.compile else None
        self._records = settings.compile and hasattr(self._device, "graph")

    def _kernels(self) -> Path | None:
        # The file that keeps this rank's choice of kernels, which another choice would not go on from bit for bit.
        if self.settings.compile_mode != "max-autotune" or self.checkpoints is None:
            return None
        with suppress(OSError):  # the choice warns if it cannot be written
            self.checkpoints.directory.mkdir(parents=True, exist_ok=True)
        rank = self.ranks.rank
        return self.checkpoints.directory / ("kernels.json" if rank == 0 else f"kernels-{rank}.json")

    # what a kind of training defines

    def loss_of(self, model: nn.Module, *batch: Any) -> Tensor:
        """The loss [] of a batch by `model`: the one that is trained, or the average of its weights."""
        raise NotImplementedError

    def stage_gradients(self, stage: ModelStage, batches: Sequence[Batch]) -> Tensor:
        """Write the gradients of this rank's `stage` of the model. -> the mean loss [] of the batches."""
        raise NotImplementedError

    def ended_a_pass(self) -> bool:
        """Whether a pass over the data, after which to evaluate, ended with the newest step or within it."""
        return False

    def held_out(self) -> Iterator[Batch]:
        """The batches of an evaluation."""
        raise NotImplementedError

    def scores(self, model: nn.Module, batches: Iterator[Batch]) -> EvalRow:
        """The row of an evaluation of `model`."""
        raise NotImplementedError

    def record(self, row: Row) -> None:
        """Called with each row before any callback sees its values."""

    def cures(self, lr: float) -> str:
        """What can be changed where values have grown too large."""
        raise NotImplementedError

    @property
    def dtype(self) -> str:
        """The name of autocast's dtype, "float32" without autocast."""
        return "float32"

    @property
    def training(self) -> Training:
        """Trains from the beginning, to try a cure; by default it cannot."""
        return Training(lambda factor: None, float(self.optimizer.param_groups[0]["lr"]))

    def join(self) -> None:
        """Begin to train with the other ranks."""
        self._replica = self.ranks.replicate(self.model)

    def precisions(self) -> Precisions:
        """In which dtypes it trains."""
        with self.region:
            return precisions(self.model, self.optimizer, self.wire_dtype if self.ranks.size > 1 else None)

    # the order of things

    def __iter__(self) -> Iterator[Row]:
        self._join()
        try:
            yield from self._rows()
        finally:
            end_training(self.optimizer)

    def _rows(self) -> Iterator[Row]:
        while not self.finished:
            row = self._evaluate() if self._evaluation_is_due() else self.advance()
            if row is not None:
                yield row
                self._check(row)
            # Read once: Ctrl-C may come at any moment, also in these lines.
            stopping = self._agree(_STOPPING if self.stopping else 0) == _STOPPING
            self.stopping |= stopping
            if stopping or self._checkpoint_is_due():
                self.save()
            if stopping:
                return

    def stop(self) -> None:
        """End the iteration after the current step, or in the middle of an evaluation, with a checkpoint."""
        self.stopping = True

    @property
    def finished(self) -> bool:
        """Whether every step, and the evaluation after the last, is done."""
        return self._steps_are_done and not self._evaluation_is_due()

    @property
    def _steps_are_done(self) -> bool:
        return self.should_stop or (self.steps is not None and self.done >= self.steps)

    def _evaluation_is_due(self) -> bool:
        return self.done > self.evaluated and (self._steps_are_done or self.evaluates_here())

    def evaluates_here(self) -> bool:
        """Whether the settings ask for an evaluation after the newest step, which is not the last."""
        every = self.settings.eval_every
        return self.ended_a_pass() if every is None else self.done % every == 0

    def _evaluate(self) -> EvalRow | None:
        row, codes = None, list[int]()
        with averaged(self.optimizer), shared_memory(self._device) if self._records else nullcontext():
            model = self.evaluated_model
            self.ranks.copy_buffers(model)
            with unsharded(model), whole_model(model):  # ranks may have other numbers of batches
                try:
                    row = self.scores(model, self._until_stopped(self.held_out(), codes))
                except StoppedError:
                    pass
                except Exception as error:
                    if isinstance(error, DistError) or (codes and self.ranks.size > 1):  # the others go on
                        raise
                    self._failed("the evaluation", error)
                    codes = codes or [self.ranks.most(FAILED)]
            if row is not None:
                self.evaluated = self.done
                self._note(row)
                self.call("on_validation_end")
        if row is None:
            self.model.train()
            if self._error is not None or codes[0] == FAILED:
                self._raise()
        return row

    @property
    def evaluated_model(self) -> nn.Module:
        """The average of the weights, or the model where there is none."""
        averaged: nn.Module = self.model if self.average is None else self.average.module
        return averaged

    def _until_stopped(self, batches: Iterator[Batch], codes: list[int]) -> Iterator[Batch]:
        for batch in batches:
            if self.stopping:
                break
            yield batch
        codes.append(self.ranks.most(_STOPPING if self.stopping else 0))
        if codes[0]:
            raise StoppedError

    def _note(self, row: Row) -> None:
        self.callback_metrics |= row.values()
        with self._saved_on_error("a logger"):
            self.record(row)

    def _check(self, row: Row) -> None:
        if isinstance(row, EvalRow) and not math.isfinite(row.val_loss):
            where = f"evaluation after step {row.step}"
            with averaged(self.optimizer):
                why = self._replay.evaluation(self.evaluated_model, self.held_out())
            lr = float(self.optimizer.param_groups[0].get("initial_lr", self._lr))
            raise self._not_finite(where, f"{row.val_loss}", lr, why)
        if self.finished and self.skipped == self.done:
            cure = f"train longer, so that the loss scale can settle, or start lower: {self.lower_scale}"
            why = self._replay.step(self.done)
            raise not_finite("training", "a step whose gradients are finite", f"{self.done} skipped", why, cure)

    def _join(self) -> None:
        if not self._joined:
            self.join()
            self._joined = True

    # checkpoints

    def _checkpoint_is_due(self) -> bool:
        every = self.settings.checkpoint_every
        best = self.evaluated == self.done and self.done in self.checkpointing.steps
        now = best or (self.checkpoints_by_default() if every is None else self.done % every == 0)
        return self.checkpoints is not None and (now or self.finished) and not self._evaluation_is_due()

    def checkpoints_by_default(self) -> bool:
        """Whether a checkpoint is due now, without an interval of steps: after each evaluation."""
        return self.evaluated == self.done

    # a step

    def advance(self) -> StepRow | None:
        """Take the next step, whatever else is due; its row if it is logged."""
        self._join()
        try:
            return self._step(self.done + 1)
        except DataEndedError:
            self.steps = self.done
            return None

    def _step(self, number: int) -> StepRow | None:
        begin_training(self.optimizer)
        start = time.perf_counter()
        logged = number % self.settings.log_every == 0 or number in (1, self.steps)
        lr = self._lr if logged else math.nan
        with observe.timed("next_batch"):
            batches = self.drawn()
        self._replay.keep(number, batches)
        result = self._updated(number, batches, logged)
        self.schedule.step()
        self._device.call_when_ready((result.loss.array, result.skipped.array), partial(self._check_loss, number))
        self.done = number
        if logged:
            self._device.synchronize()
        self.seconds += time.perf_counter() - start
        row = self._row(number, result, lr) if logged else None
        if row is not None:
            self._note(row)
        self.call("on_train_batch_end", result.loss, _unwrapped(batches[-1]), number)
        return row

    def _updated(self, number: int, batches: Sequence[Batch], logged: bool) -> StepMeasures:
        ranges = self.ranges if self.ranges is not None and self.ranges.samples_step(number) else None
        # A recorded step shows no ops.
        update = self._train_step if ranges is not None or self._update is None else self._update
        try:
            with nullcontext() if ranges is None else ranges.step(number):
                measures: StepMeasures = update(batches, logged or self._records)  # a recorded step has the norm
                return measures
        except ScaleCollapseError as error:
            why = self._replay.step(number)
            what, _, cure = str(error).partition("\nhelp: ")
            raise ScaleCollapseError(f"{what}{why.account}", cure=why.cure or cure) from None

    def _row(self, number: int, result: StepMeasures, lr: float) -> StepRow:
        assert result.grad_norm is not None
        scale, norm = float(self.scaler.get_scale()), float(result.grad_norm)
        memory = peak_of_device(self.settings.device)
        return StepRow(number, float(result.loss), lr, scale, self.skipped, norm, self.seconds, memory)

    @property
    def _lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def _train_step(self, batches: Sequence[Batch], measure_norm: bool) -> StepMeasures:
        more = self.settings.grad_clip, measure_norm, self._guard
        if self._deterministic is not None:
            loss = self._deterministic.forward_backward(self._loss_in_region, batches, self.scaler)
            result = update(loss, self.optimizer, self.scaler, *more)
        elif self._stage is not None:
            loss = self.stage_gradients(self._stage, batches)
            result = update(loss, self.optimizer, self.scaler, *more)
        else:
            what = (partial(self.loss_of, self._replica), batches, self.optimizer, self.scaler, self.region)
            result = step(*what, *more, self.ranks)
        if self.average is not None:
            self.average.update_parameters(self.model)
        return result

    def _loss_in_region(self, model: nn.Module, *batch: Any) -> Tensor:
        with self.region:
            return self.loss_of(model, *batch)

    def draws(self, count: int) -> Sequence[AbstractContextManager[Any]]:
        """For each of the `count` batches of the next step, the context that its random numbers are drawn in."""
        if self._stage is not None and self._stage.tree_of is not None:
            return self._stage.draws()
        return [nullcontext()] * count if self._deterministic is None else self._deterministic.draws()

    def _check_loss(self, number: int, loss: float, skipped: bool) -> None:
        # Called for every step: at once on a CPU, on an asynchronous device once a later step finds it done.
        if self.scaler.is_enabled():
            self.skipped += skipped
            if skipped and (text := self._replay.skipped(number, loss, self.scaler.monitor)):
                self.notice(text)
        elif skipped:
            got = f"{loss}" if not math.isfinite(loss) else "gradients that are not"
            why, lr = self._replay.step(number), self._lr
            self._replay.undo(number)
            raise self._not_finite(f"step {number}", got, lr, why)
        self._replay.checked(number)

    def _not_finite(self, where: str, got: str, lr: float, why: Explanation) -> NonFiniteError:
        return not_finite(f"{where}, {self.dtype}", "a finite loss", got, why, self.cures(lr))


def _unwrapped(batch: Batch) -> Any:
    return batch[0] if len(batch) == 1 else batch


def _compiled(loop: ref[TrainingLoop], mode: str, choices: Path | None) -> Any:
    """The steps of a loop, compiled; of a weak reference, as the loop holds what this returns."""

    def train_step(batches: Sequence[Batch], measure_norm: bool) -> StepMeasures:
        held = loop()
        assert held is not None
        return held._train_step(batches, measure_norm)

    return compile(train_step, mode=mode, choices=choices)
