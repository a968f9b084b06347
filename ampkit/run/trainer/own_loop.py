"""setup: what a loop of one's own needs around a model and an optimizer, in the words of Lightning Fabric."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

from ... import backends, nn, serialization
from ...amp.grad_scaler import GradScaler
from ...base.errors import ArgumentError, NonFiniteError, StateError
from ...core.saved_state import need_keys
from ...core.tensor import Tensor
from ...optim.lr_scheduler import LRScheduler
from ..guard import Guard
from ..loggers import row_of
from ..metrics_log import ResumePoint
from ..step import update
from ..training_state import TrainingState
from .callbacks import ModelCheckpoint
from .directory import Directory, Logger, warn
from .epochs import Batches, Epochs, on_device
from .parts import Precision, parts_of

_END = object()  # None may be a batch


class TrainingSetup(TrainingState):
    """What `ampkit.setup` returns: the state of a training, and the calls of a step; a context manager.

    It iterates over the batches, on the model's device, epoch after epoch; `batches(max_steps)` ends. model, optimizer,
    schedule, scaler and average are those that it was made of. done: the updates so far.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        train_dataloaders: Batches | None = None,
        *,
        lr_scheduler: LRScheduler | None = None,
        precision: Precision = "32-true",
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        ema: float | None = None,
        logger: Logger | Sequence[Logger] = (),
        default_root_dir: str | Path | None = None,
        scaler: GradScaler | None = None,
    ):
        if type(accumulate_grad_batches) is not int or accumulate_grad_batches < 1:
            raise ArgumentError("setup", "accumulate_grad_batches from 1", repr(accumulate_grad_batches))
        found = parts_of("setup", model, optimizer, lr_scheduler, precision, ema, scaler)
        super().__init__(found.model, found.optimizer, found.schedule, found.scaler, found.average)
        self.device, self.precision = found.device, precision
        self._region, self._dtype, self._accumulate = found.region, found.dtype, accumulate_grad_batches
        self._clip, self._guard = gradient_clip_val, Guard(found.device)
        self._epochs = None if train_dataloaders is None else Epochs(train_dataloaders)
        self._losses: list[Tensor] = []  # of the batches since the last update
        self._started = time.perf_counter()
        self._directory = Directory(default_root_dir, logger, ModelCheckpoint(), warn)
        self._stack, self._is_open = ExitStack(), False
        self._resumed: ResumePoint | None = None

    @property
    def eval_model(self) -> nn.Module:
        """The average of the weights, or the model where there is none."""
        averaged: nn.Module = self.model if self.average is None else self.average.module
        return averaged

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward and its loss, in the precision chosen."""
        return self._region

    def __iter__(self) -> Iterator[Any]:
        """The batches, without end: `batches()`."""
        return self.batches()

    def batches(self, max_steps: int | None = None) -> Iterator[Any]:
        """The batches on the model's device, epoch after epoch, until `max_steps` updates are done.

        Raises ArgumentError where the data end before.
        """
        if self._epochs is None:
            raise ArgumentError("setup", "train_dataloaders to iterate over", "none")
        while max_steps is None or self.done < max_steps:
            batch = next(self._epochs, _END)
            if batch is _END:
                break
            yield on_device(batch, self.device)
        else:
            return
        cure = "a generator can be iterated once: give a list, a DataLoader, or the function that makes it"
        raise ArgumentError("train_dataloaders", "batches in each epoch", "none", cure)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss` [], scaled, as its share of an update; call it outside of `autocast`."""
        if len(self._losses) == self._accumulate:
            raise StateError("setup.backward", "step() after each backward", f"{self._accumulate + 1} of them")
        self.scaler.scale(loss / self._accumulate if self._accumulate > 1 else loss).backward()
        self._losses.append(loss.detach())

    def step(self) -> bool:
        """Update the weights with the mean gradient of the batches, and say whether it was time to.

        With accumulation only every accumulate_grad_batches-th call does. Then the gradients are clipped, schedule and
        average advance, and the gradients are gone. In float16 an update whose gradients overflow is skipped; else one
        that is not finite raises NonFiniteError, and the weights are those of before.
        """
        if len(self._losses) < self._accumulate:
            return False
        losses, self._losses = self._losses, []
        loss = sum(losses[1:], losses[0]) / self._accumulate
        measures = update(loss, self.optimizer, self.scaler, self._clip, False, self._guard)
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.schedule.step()
        self.done += 1
        device = backends.get(self.device)
        device.call_when_ready((measures.loss.array, measures.skipped.array), partial(self._check, self.done))
        return True

    def _check(self, number: int, loss: float, skipped: bool) -> None:
        if self.scaler.is_enabled():
            self.skipped += skipped
        elif skipped:
            self.done = number - 1
            got = "gradients that are not" if math.isfinite(loss) else f"{loss}"
            cure = "ampkit.debug.explain(step) says where it came from"
            raise NonFiniteError(f"step {number}, {self._dtype}", "a finite loss", got, cure)

    # rows

    def log_dict(self, metrics: Mapping[str, Any]) -> None:
        """Write a row: numbers, or tensors [], by name; `step`, where it is not among them, is `done`.

        It goes to metrics.jsonl of default_root_dir, and to the loggers. Raises ArgumentError for anything else.
        """
        row = row_of({"step": self.done, **metrics})
        self._open()
        self._directory.record({"step": row.step, **row.values})

    def _open(self) -> None:
        if not self._is_open:
            self._stack.enter_context(self._directory.locked(True))
            self._stack.enter_context(self._directory.written(None, self._resumed))
            self._is_open = True

    def close(self) -> None:
        """Write what loggers still have to write."""
        self._stack.close()
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # checkpoints

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on: the parts, the place in the data, the random stream.

        Raises StateError between the batches of an update, whose gradients it would leave out.
        """
        if self._losses:
            needs, got = "a moment after step() has updated", f"{len(self._losses)} of {self._accumulate} batches"
            raise StateError("setup.state_dict", needs, got, "save where step() has returned True")
        self.seconds, self._started = self.seconds + time.perf_counter() - self._started, time.perf_counter()
        return {**self.snapshot(), "data": {} if self._epochs is None else self._epochs.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit, with the same data."""
        need_keys("setup.load_state_dict", state, ("counts", "data"))
        if self._epochs is not None:
            self._epochs.load_state_dict(state["data"])
        self.restore(state)
        self._losses, self._started = [], time.perf_counter()
        self._resumed = ResumePoint(self.done, self.done)
        self.optimizer.zero_grad()

    def save(self, path: str | Path) -> None:
        """Write `state_dict` to a file, which appears whole or not at all."""
        backends.get(self.device).synchronize()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        serialization.save(self.state_dict(), path)

    def load(self, path: str | Path) -> None:
        """Continue from a file that `save` wrote. Raises FileError if there is none."""
        self.load_state_dict(serialization.load(path))


def setup(
    model: nn.Module,
    optimizer: Any,
    train_dataloaders: Batches | None = None,
    *,
    lr_scheduler: LRScheduler | None = None,
    precision: Precision = "32-true",
    accumulate_grad_batches: int = 1,
    gradient_clip_val: float | None = None,
    ema: float | None = None,
    logger: Logger | Sequence[Logger] = (),
    default_root_dir: str | Path | None = None,
    scaler: GradScaler | None = None,
) -> TrainingSetup:
    """What a loop of one's own needs around a model and its optimizer: precision, accumulation, exact resume, rows.

        with ampkit.setup(model, optimizer, loader, precision="16-mixed", ema=0.99) as run:
            for x, y in run.batches(max_steps=1000):
                with run.autocast():
                    loss = ops.cross_entropy(model(x), y)
                run.backward(loss)
                run.step()

    train_dataloaders: any iterable of batches, or a function that returns one; its place is part of a checkpoint.
    The others are those of `Trainer`. See TrainingSetup for what it gives. Model and optimizer stay what they are.
    Raises ArgumentError or DTypeError for arguments that do not fit.
    """
    return TrainingSetup(
        model,
        optimizer,
        train_dataloaders,
        lr_scheduler=lr_scheduler,
        precision=precision,
        accumulate_grad_batches=accumulate_grad_batches,
        gradient_clip_val=gradient_clip_val,
        ema=ema,
        logger=logger,
        default_root_dir=default_root_dir,
        scaler=scaler,
    )
