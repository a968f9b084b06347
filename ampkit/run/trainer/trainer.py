"""Trainer: trains any model on any batches, in the loop of `ampkit train`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from ... import nn, ops
from ...amp.grad_scaler import GradScaler
from ...base import observe
from ...base.errors import ArgumentError, StateError, switch
from ...base.progress import displayed
from ...core import random
from ...core.autograd.grad_mode import no_grad
from ...core.tensor import Tensor
from ...optim.adam.schedule_free import averaged
from ...optim.lr_scheduler import LRScheduler
from ..metrics import RunningSums
from ..metrics_log import ResumePoint
from ..ranks import Ranks
from ..step import Batch
from .argument_names import known_names
from .batches import DataEndedError
from .callbacks import Callback, ModelCheckpoint, Monitor, check
from .directory import Directory, Logger, warn
from .epochs import Batches, Epochs, iterator, on_device
from .loop import Settings, TrainingLoop
from .parts import Precision, batch_size, loss_and_metrics, parts_of
from .rows import BETTER, EvalRow, Row
from .signals import Ended, Signals

Loss = Callable[[Any, Any], Tensor | Mapping[str, Tensor]]
_ONCE = "a generator can be iterated once: give a list, a DataLoader, or the function that makes it"


class Trainer(TrainingLoop):
    """Trains `model` by `optimizer` on any iterable of batches.

        trainer = ampkit.Trainer(model, optimizer, loss, max_epochs=3, precision="bf16-mixed")
        trainer.fit(train_loader, val_loader)

    loss: loss(model, batch) returns the mean loss [] of a batch, or a dict of it as "loss" and of further metrics [],
    which evaluations average over their samples. It runs in autocast. max_epochs, max_steps: where training ends, the
    first of both. lr_scheduler: stepped after each update that was not skipped. precision: "32-true", "bf16-mixed",
    "16-mixed" or a Policy. accumulate_grad_batches: batches in an update, also across the border of two epochs; the
    last batches that make no whole update are left out. gradient_clip_val: the largest norm of the gradients. ema: the
    decay of an average of the weights, which evaluations use (`average.module`). callbacks: see Callback. logger: names
    of `ampkit.run.loggers.LOGGERS`, and functions that are called with each row as a dict, such as `print`.
    default_root_dir: where metrics.jsonl and checkpoints are written; None writes nothing. val_check_interval: updates
    between evaluations; None evaluates after each epoch, and at the end.
    log_every_n_steps: updates between rows. enable_model_summary: print the dtypes of the training, see
    `debug.precisions`, before its first step, and at the end whether it ended early. monitor: the metric by which the
    best checkpoints are chosen, and for EarlyStopping where that names none. scaler: by default a GradScaler for
    float16. compile: record an update once and replay it, see `ampkit.compile`. progress: show a bar, in a notebook one
    display, else on the terminal.
    On several ranks of ampkit.distributed each gives batches of its own, as many as the others.
    `done` (global_step) counts the updates, `callback_metrics` has the newest values, `should_stop` ends the training.
    Raises ArgumentError or DTypeError for arguments that do not fit.
    """

    @known_names
    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        loss: Loss,
        *,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        lr_scheduler: LRScheduler | None = None,
        precision: Precision = "32-true",
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        ema: float | None = None,
        callbacks: Callback | Sequence[Callback] = (),
        logger: Logger | Sequence[Logger] = (),
        default_root_dir: str | Path | None = None,
        val_check_interval: int | None = None,
        log_every_n_steps: int = 10,
        monitor: str = "val_loss",
        scaler: GradScaler | None = None,
        enable_model_summary: bool = True,
        compile: bool = False,
        progress: bool = False,
    ):
        counts = {"max_epochs": max_epochs, "max_steps": max_steps, "val_check_interval": val_check_interval}
        counts |= {"accumulate_grad_batches": accumulate_grad_batches, "log_every_n_steps": log_every_n_steps}
        _check_counts({name: value for name, value in counts.items() if value is not None})
        if gradient_clip_val is not None and not gradient_clip_val > 0:
            raise ArgumentError("Trainer", "gradient_clip_val above 0", repr(gradient_clip_val))
        if not callable(loss):
            raise ArgumentError("Trainer", "loss to be a function of model and batch", repr(loss))
        found = parts_of("Trainer", model, optimizer, lr_scheduler, precision, ema, scaler)
        chosen = [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
        check(chosen)
        if not any(isinstance(each, ModelCheckpoint) for each in chosen):
            chosen.append(ModelCheckpoint())
        _follow(chosen, monitor)
        every = next(each for each in chosen if isinstance(each, ModelCheckpoint)).every_n_train_steps
        settings = Settings(
            found.device, accumulate_grad_batches, gradient_clip_val, log_every_n_steps, val_check_interval, every,
            switch("Trainer", "compile", compile),
        )  # fmt: skip
        trained = found.model, found.optimizer, found.schedule, found.scaler, found.average, found.region
        super().__init__(*trained, settings, max_steps, Ranks.present(), chosen)
        self._dtype, self._prints, self._shown = found.dtype, enable_model_summary, False
        self.max_epochs, self.max_steps, self._loss = max_epochs, max_steps, loss
        self._shows = switch("Trainer", "progress", progress) and self.ranks.rank == 0
        self.notice = warn
        self._directory = Directory(default_root_dir, logger, self.checkpointing, warn, self.ranks.rank == 0)
        self.checkpoints = self._directory.checkpoints
        self._epochs: Epochs | None = None
        self._held_out: Batches | None = None
        self._ended = 0, False  # the newest step, and whether a pass over data of unknown length ended with it

    # PyTorch Lightning's names

    @property
    def global_step(self) -> int:
        """The updates so far."""
        return self.done

    @property
    def current_epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return 0 if self._epochs is None else self._epochs.epoch

    @known_names
    def fit(
        self,
        train_dataloaders: Batches,
        val_dataloaders: Batches | None = None,
        ckpt_path: str | Path | Literal["last", "best"] | None = None,
    ) -> None:
        """Train, and evaluate on `val_dataloaders`; a second call with the same data goes on.

        Each is an iterable of batches, iterated anew in every epoch, or a function that returns one. Tensors in tuples,
        lists and dicts are brought to the model's device. ckpt_path: a checkpoint to continue from, bit for bit, with
        the same data: "last" is the newest intact one of default_root_dir, or a start if there is none; "best" that of
        the best evaluation; or a file of one, as `best_model_path` names it. Ctrl-C ends training after the current
        update with a checkpoint, and raises KeyboardInterrupt; a second one ends it at once.
        Raises ArgumentError for data that end before max_steps, a directory of another run, and a hook's own error,
        each after a checkpoint was written; NonFiniteError for a loss that is not finite.
        """
        self._begin(train_dataloaders, val_dataloaders, ckpt_path is not None)
        with Signals() as signals, ExitStack() as stack:
            signals.stop = self.stop
            stack.enter_context(self._directory.locked(ckpt_path is not None or self.done > 0))
            self.steps = self._length_of_training()
            self._load(ckpt_path)
            self._show_precisions()
            self.before_saving = stack.enter_context(self._directory.written(self.resumed, self._resume_point()))
            try:
                self._train()
                if self.stopping and signals.stop is None:
                    raise Ended(signals.status - 128)
            except BaseException as error:
                if isinstance(error, Ended) and self.checkpoints is not None:
                    error.add_note(f'after step {self.done}; fit(..., ckpt_path="last") continues')
                for callback in self.callbacks:
                    callback.on_exception(self, error)
                raise

    def _show_precisions(self) -> None:
        # Once: a later fit goes on in the same.
        if self._shown or self.ranks.rank:
            return
        self._shown, found = True, self.precisions()
        self._directory.note({"dtype": self.dtype, "precisions": found.named()}, self.done)
        if self._prints:
            sys.stdout.write(f"{found}\n")

    def _train(self) -> None:
        self.call("on_fit_start")
        self._agree()
        before = self.done
        for _ in displayed(self) if self._shows else self:
            pass
        if not self.stopping:
            self.call("on_fit_end")
            self._agree()
        said = self.early_end or ("" if self.stopping or self.done != before else self._complete())
        if said and (self._prints or self._shows) and not self.ranks.rank:
            sys.stdout.write(f"{said}\n")

    def _complete(self) -> str:
        by_steps = self.max_steps is not None and self.done >= self.max_steps
        more = f"max_steps={2 * self.done}" if by_steps else f"max_epochs={2 * (self.max_epochs or 1)}"
        return f"complete: all {self.done} updates are done; {more} would continue"

    def _begin(self, train: Batches, val: Batches | None, resumes: bool) -> None:
        same = self._epochs is not None and self._epochs.data is train
        if self.done and not same and not resumes:
            cure = 'make a new Trainer, or continue from a checkpoint: ckpt_path="last"'
            raise StateError("Trainer.fit", "the data that it was training on", "others", cure)
        if self.max_epochs is None and self.max_steps is None:
            raise ArgumentError("Trainer.fit", "max_epochs or max_steps", "neither")
        if self._epochs is None or not same or resumes:
            self._epochs = Epochs(train, self.max_epochs)
        self._held_out, self.stopping, self.should_stop = val, False, False
        self._ended = 0, False
        self.optimizer.zero_grad()  # of a step that did not come to its end

    def _length_of_training(self) -> int | None:
        assert self._epochs is not None
        if self.max_epochs is None or self._epochs.length is None:
            return self.max_steps
        whole = self.max_epochs * self._epochs.length // self.settings.accumulate
        if whole == 0:
            needs = f"{self.settings.accumulate} batches for an update (accumulate_grad_batches)"
            raise ArgumentError("train_dataloaders", needs, f"{self.max_epochs * self._epochs.length} in all")
        return whole if self.max_steps is None else min(whole, self.max_steps)

    def _load(self, path: str | Path | None) -> None:
        found = None if path is None else self._directory.checkpoint(path)
        if found is None:
            return
        assert self._epochs is not None
        by_rank = found.state.get("ranks", ())
        own = by_rank[self.ranks.rank] if len(by_rank) == self.ranks.size else {}
        self._epochs.load_state_dict({**found.state, **own}["data"])
        self.load_state_dict({**found.state, **own})
        self.resumed = found._replace(state=None)

    def _resume_point(self) -> ResumePoint | None:
        return ResumePoint(self.done, self.evaluated) if self.done else None

    # evaluation and prediction

    def validate(self, dataloaders: Batches) -> dict[str, float]:
        """The metrics of the model, or of its average, over the batches: `val_loss` and what the loss adds."""
        with averaged(self.optimizer):
            row = self.scores(self.evaluated_model, self._some("dataloaders", dataloaders)).values()
        del row["step"]
        return row

    def predict(self, dataloaders: Batches, forward: Callable[[Any, Any], Any] | None = None) -> list[Any]:
        """The outputs for each batch, in eval mode and the Trainer's precision, by the average where there is one.

        forward: forward(model, batch); by default the model is called with the batch, of a tuple or list with its
        first item.
        """
        model, call = self.evaluated_model, forward or _forward
        batches = self._wrapped("dataloaders", dataloaders)
        with averaged(self.optimizer):
            return [output for output, _ in self._in_eval_mode(model, batches, call)]

    def scores(self, model: nn.Module, batches: Iterator[Batch]) -> EvalRow:
        """The row of an evaluation of `model`; random numbers that it draws do not count."""
        sums: dict[str, RunningSums] = {}
        with closing(self._in_eval_mode(model, batches, self._loss)) as evaluated:
            for found, batch in evaluated:
                for name, value in loss_and_metrics("Trainer", found).items():
                    size = ops.full_like(value, batch_size(batch), dtype="float64")
                    sums.setdefault(name, RunningSums(2)).add(value, size)
        values = {name: each.read(self.ranks.gathered)[0] for name, each in sums.items()}
        return EvalRow(self.done, values.pop("loss"), metrics=values)

    def _in_eval_mode(
        self, model: nn.Module, batches: Iterator[Batch], call: Callable[[Any, Any], Any]
    ) -> Generator[tuple[Any, Any], None, None]:
        state, training = random.default.state(), model.training
        model.eval()
        try:
            for (batch,) in batches:
                with no_grad(), self.region:
                    found = call(model, batch)
                yield found, batch
        finally:
            model.train(training)
            random.default.restore(state)

    # what the loop asks for

    def loss_of(self, model: nn.Module, *batch: Any) -> Tensor:
        """The loss [] of a batch."""
        return loss_and_metrics("Trainer", self._loss(model, *batch))["loss"]

    def next_batches(self) -> list[Batch]:
        """The batches of the next update, on the model's device; fewer where the data end."""
        assert self._epochs is not None
        found = islice(self._epochs, self.settings.accumulate)
        return [(on_device(batch, self.settings.device),) for batch in found]

    def place(self) -> Any:
        """The place of the next batch."""
        assert self._epochs is not None
        return self._epochs.place()

    def go_back(self, place: Any) -> None:
        """Draw the next batch from a `place`."""
        assert self._epochs is not None
        self._epochs.go_back(place)

    def end_of_data(self, found: int) -> Exception:
        """What to raise where the data had `found` batches for an update, and no more."""
        assert self._epochs is not None
        if self.ranks.any(self._epochs.epoch == self.max_epochs) and self.done:
            return DataEndedError()
        got = f"{self.done * self.settings.accumulate + found} in {self._epochs.epoch + 1} epochs"
        wanted = "one epoch of them" if self.steps is None else f"enough for {self.steps} updates"
        return ArgumentError("train_dataloaders", f"batches, {wanted}", got, _ONCE)

    def _wrapped(self, where: str, data: Batches) -> Iterator[Batch]:
        return ((on_device(batch, self.settings.device),) for batch in iterator(where, data))

    def _some(self, where: str, data: Batches) -> Iterator[Batch]:
        batches = self._wrapped(where, data)
        for batch in batches:
            yield batch
            yield from batches
            return
        raise ArgumentError(where, "a batch in each evaluation", "none", _ONCE)

    def held_out(self) -> Iterator[Batch]:
        """The batches of an evaluation."""
        assert self._held_out is not None
        return self._some("val_dataloaders", self._held_out)

    def ended_a_pass(self) -> bool:
        """Whether an epoch ended with the newest step or within it."""
        if self._epochs is None or self._epochs.length is not None:
            return self._epochs is not None and self._epochs.has_ended(self.settings.accumulate)
        if self._ended[0] != self.done:
            start = time.perf_counter()
            with observe.timed("next_batch"):
                ended = self._epochs.has_ended(self.settings.accumulate)
            self.seconds += time.perf_counter() - start
            self._ended = self.done, self.ranks.any(ended)  # once: all ranks ask together
        return self._ended[1]

    def checkpoints_by_default(self) -> bool:
        """Whether a checkpoint is due now: after each evaluation, or where there is none after each epoch."""
        return super().checkpoints_by_default() or (self._held_out is None and self.evaluates_here())

    def _evaluation_is_due(self) -> bool:
        return self._held_out is not None and super()._evaluation_is_due()

    def record(self, row: Row) -> None:
        """Write a row to metrics.jsonl and to the loggers."""
        self._directory.record(row)

    def data_state(self) -> dict[str, Any]:
        """The place of the next batch."""
        return {} if self._epochs is None else self._epochs.state_dict()

    def rank_state(self) -> dict[str, Any]:
        """The place of this rank's next batch, and its random state."""
        return {"data": self.data_state(), "random": random.default.state()}

    @property
    def dtype(self) -> str:
        """The name of autocast's dtype, "float32" without autocast."""
        return self._dtype

    def cures(self, lr: float) -> str:
        """The arguments that can be changed where values have grown too large."""
        other = ', or see whether precision="32-true" is finite' if self._dtype != "float32" else ""
        return f"lower the learning rate (it was {lr:g}), clip the gradients with gradient_clip_val=1.0{other}"


def _forward(model: Any, batch: Any) -> Any:
    return model(batch[0] if isinstance(batch, list | tuple) else batch)


def _follow(callbacks: Sequence[Callback], monitor: str) -> None:
    if monitor not in BETTER and "loss" not in monitor:
        needs = f"monitor to be {', '.join(BETTER)} or a loss, whose better values are known"
        cure = f'say which are: ModelCheckpoint(monitor={monitor!r}, mode="max") among the callbacks'
        raise ArgumentError("Trainer", needs, repr(monitor), cure)
    for each in callbacks:
        if isinstance(each, Monitor):
            each.follow(monitor)


def _check_counts(counts: Mapping[str, Any]) -> None:
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ArgumentError("Trainer", f"{name} as an integer from 1", repr(value))
