"""Objectives (a loss and its metric), one update of a model, and one evaluation of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from .. import nn, ops, optim
from ..amp.grad_scaler import GradScaler, skip_unless_finite
from ..base.dtypes import bool_
from ..base.registry import DATASETS
from ..core.autograd.grad_mode import no_grad
from ..core.tensor import Tensor
from .guard import Guard
from .metrics import Accuracy, CharErrorRate, Metric, Scores, SquaredError
from .ranks import ALONE, Ranks

IGNORE_INDEX = -100  # a target that does not count, as of cross_entropy
AUX_WEIGHT = 0.5  # of an auxiliary output's loss, as in torchvision's reference training

Batch = tuple[Tensor, ...]  # inputs, then the targets of the model's objective


class Objective(Protocol):
    """The loss that a model minimizes and the metric that evaluates it. unit: what its samples are counted in."""

    @property
    def unit(self) -> str: ...

    def loss(self, output: Any, *targets: Tensor) -> Tensor:
        """The mean loss of a batch []."""

    def metric(self) -> Metric:
        """A new metric, for one evaluation."""

    def metric_inputs(self, output: Any, *targets: Tensor) -> tuple[Tensor, ...]:
        """The arguments of `Metric.update` for a batch: the loss, the predictions and the targets."""


@dataclass(frozen=True)
class Classification:
    """Cross entropy, evaluated by accuracy.

    class_axis: of the logits. mean_iou: also evaluated by the mean intersection over union of the classes.
    """

    class_axis: int
    unit: str
    mean_iou: bool = False

    def loss(self, output: Any, *targets: Tensor) -> Tensor:
        """The mean cross entropy over the targets that count; the "aux" output of a dict adds AUX_WEIGHT of its own."""
        if not isinstance(output, dict):
            return ops.cross_entropy(*self._classes_second(output, *targets))
        loss = self.loss(output["out"], *targets)
        return loss + AUX_WEIGHT * self.loss(output["aux"], *targets) if "aux" in output else loss

    def metric(self) -> Metric:
        """Accuracy, with mean IoU where `mean_iou` says so."""
        return Accuracy(IGNORE_INDEX, self.mean_iou)

    def metric_inputs(self, output: Any, *targets: Tensor) -> tuple[Tensor, ...]:
        """Loss [], logits [n, classes, ...] and targets [n, ...]; of a dict the output "out"."""
        logits, labels = self._classes_second(output["out"] if isinstance(output, dict) else output, *targets)
        return ops.cross_entropy(logits, labels), logits, labels

    def _classes_second(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self.class_axis == 1 or (targets.is_floating_point() and targets.ndim == logits.ndim):
            return logits, targets  # also probabilities, as mixed labels are
        return logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)


@dataclass(frozen=True)
class Transcription:
    """CTC loss, evaluated by the character error rate.

    The output: log-probabilities [n, classes, steps], class 0 the blank. Targets: the valid steps of each output [n],
    the letters [n, longest] and their number [n].
    """

    unit: str = "samples"

    def loss(self, output: Any, *targets: Tensor) -> Tensor:
        """The CTC loss per letter, averaged over the sequences."""
        lengths, letters, counts = targets
        loss: Tensor = ops.ctc_loss(output.permute(2, 0, 1), letters, lengths, counts)
        return loss

    def metric(self) -> Metric:
        """The character error rate of the best path."""
        return CharErrorRate()

    def metric_inputs(self, output: Any, *targets: Tensor) -> tuple[Tensor, ...]:
        """The loss, the output and the targets, unchanged."""
        return self.loss(output, *targets), output, *targets


@dataclass(frozen=True)
class Regression:
    """Mean squared error of outputs [n, 1] against standardized targets [n], evaluated by RMSE and R2.

    std: of the targets before they were standardized, in whose unit RMSE is.
    """

    std: float
    unit: str = "samples"

    def loss(self, output: Any, *targets: Tensor) -> Tensor:
        """The mean squared error, of the standardized targets."""
        (target,) = targets
        loss: Tensor = ops.mse_loss(output.reshape(-1), target)
        return loss

    def metric(self) -> Metric:
        """The root mean squared error and R2."""
        return SquaredError(self.std)

    def metric_inputs(self, output: Any, *targets: Tensor) -> tuple[Tensor, ...]:
        """Loss [], outputs [n] and targets [n]."""
        return self.loss(output, *targets), output.reshape(-1), *targets


IMAGE_CLASSES = Classification(-1, "samples")
PIXEL_CLASSES = Classification(1, "samples", mean_iou=True)
TOKENS = Classification(-1, "tokens")
LETTERS = Transcription()
_OBJECTIVES: dict[str, Objective] = {
    "images": IMAGE_CLASSES,
    "rows": IMAGE_CLASSES,
    "pixel labels": PIXEL_CLASSES,
    "tokens": TOKENS,
    "masked tokens": TOKENS,
    "speech": LETTERS,
}


def objective_of(recipe: Any, about: Mapping[str, Any] | None = None) -> Objective:
    """The objective of a recipe: that of the samples of its data set.

    about: of the input pipeline, or of a checkpoint: the spread of a regression's target.
    """
    if getattr(recipe.data, "task", None) == "regression":
        return Regression((about or {}).get("table", {}).get("target", {}).get("std", 1.0))
    return _OBJECTIVES[DATASETS[recipe.data.name].samples]


class StepMeasures(NamedTuple):
    """The outcome of a step, still on the device.

    loss: the mean over its batches []. grad_norm: the norm of the gradients [], None if it was not computed. skipped:
    whether the gradients overflowed, a bool [].
    """

    loss: Tensor
    grad_norm: Tensor | None
    skipped: Tensor


def step(
    loss_of: Callable[..., Tensor],
    batches: Sequence[Batch],
    optimizer: Any,
    scaler: GradScaler,
    region: AbstractContextManager[Any],
    grad_clip: float | None = None,
    measure_norm: bool = False,
    guard: Guard | None = None,
    ranks: Ranks = ALONE,
) -> StepMeasures:
    """Update the weights once with the mean gradient of `batches`; not if the loss or a gradient is not finite.

    loss_of(inputs, *targets): the mean loss of a batch, computed inside `region` (an autocast, or nullcontext()).
    grad_clip: the largest norm of the unscaled gradients. measure_norm: return their norm even without clipping.
    guard: skips a step that is not finite where `scaler` is disabled. ranks: those that average loss and gradients.
    Raises ScaleCollapseError if the loss scale has fallen too far.
    """
    losses = []
    for number, batch in enumerate(batches, 1):
        with nullcontext() if number == len(batches) else ranks.no_sync():
            with region:
                loss = loss_of(*batch)
                mean = loss / len(batches) if len(batches) > 1 else loss
            scaler.scale(mean).backward()
        losses.append(loss.detach())
    loss = ranks.mean(sum(losses[1:], losses[0]) / len(losses))
    return update(loss, optimizer, scaler, grad_clip, measure_norm, guard)


def update(
    loss: Tensor,
    optimizer: Any,
    scaler: GradScaler,
    grad_clip: float | None = None,
    measure_norm: bool = False,
    guard: Guard | None = None,
) -> StepMeasures:
    """Update the weights with the gradients that were accumulated, which are gone afterwards; see `step`.

    loss: the mean over the batches [].
    """
    skip_unless_finite(scaler, optimizer, loss.array)
    norm = None
    if grad_clip is not None or measure_norm:
        scaler.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = optim.clip_grad_norm_(parameters, math.inf if grad_clip is None else grad_clip)
    if guard is not None and not scaler.is_enabled():
        skipped = guard.step(optimizer, loss, norm)
    else:
        overflow = getattr(scaler.step(optimizer), "overflow", None)
        scaler.update()
        skipped = ops.zeros((), dtype=bool_, device=loss.device) if overflow is None else overflow
    optimizer.zero_grad()
    return StepMeasures(loss, norm, skipped)


def evaluate(
    model: nn.Module,
    batches: Iterator[Batch],
    region: AbstractContextManager[Any],
    objective: Objective = IMAGE_CLASSES,
    ranks: Ranks = ALONE,
) -> Scores:
    """The scores of `model` over `batches`, in eval mode without a tape; the host reads the device only at the end.

    ranks: those whose `batches` count together.
    """
    metric = objective.metric()
    model.eval()
    with no_grad():
        for inputs, *targets in batches:
            with region:
                metric.update(*objective.metric_inputs(model(inputs), *targets))
    model.train()
    return metric.compute(ranks.gathered)
