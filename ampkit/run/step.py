"""One update of a model, and one evaluation of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from .. import nn, ops, optim
from ..amp.grad_scaler import GradScaler
from ..base.dtypes import bool_
from ..core.autograd.grad_mode import no_grad
from ..core.tensor import Tensor
from . import tasks
from .input_pipeline import Batch
from .metrics import Scores
from .tasks import Task


class Outcome(NamedTuple):
    """What a step did, still on the device.

    loss: the mean of its batches. grad_norm: of the gradients, if asked. skipped: whether they overflowed, a bool.
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
    measure: bool = False,
) -> Outcome:
    """One update from the mean gradient of `batches`.

    loss_of(inputs, *targets): the mean loss of a batch, computed inside `region` (an autocast, or nullcontext()).
    grad_clip: the largest norm of the gradients, unscaled. measure: give their norm also where nothing is clipped.
    Raises ScaleCollapseError if the loss scale has fallen too far.
    """
    losses = []
    for batch in batches:
        with region:
            loss = loss_of(*batch)
            share = loss / len(batches) if len(batches) > 1 else loss
        scaler.scale(share).backward()
        losses.append(loss.detach())
    norm = None
    if grad_clip is not None or measure:
        scaler.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = optim.clip_grad_norm_(parameters, math.inf if grad_clip is None else grad_clip)
    result = scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    loss, overflow = sum(losses[1:], losses[0]) / len(losses), getattr(result, "overflow", None)
    return Outcome(loss, norm, ops.zeros((), dtype=bool_, device=loss.device) if overflow is None else overflow)


def evaluate(
    model: nn.Module, batches: Iterator[Batch], region: AbstractContextManager[Any], task: Task = tasks.CLASSIFY
) -> Scores:
    """The scores of `model` over `batches`, in eval mode, nothing recorded; the host reads them at the end alone."""
    judge = task.judge()
    model.eval()
    with no_grad():
        for inputs, *targets in batches:
            with region:
                judge.add(*task.shown(model(inputs), *targets))
    model.train()
    return judge.scores()
