"""What a training consists of beside the model and the optimizer, from the words of Lightning and PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

from ... import nn
from ...amp.grad_scaler import GradScaler
from ...base.errors import ArgumentError, DTypeError
from ...core.policy import Policy, autocast
from ...core.tensor import Tensor
from ...optim.lr_scheduler import LambdaLR, LRScheduler
from ...optim.optimizer import Optimizer
from ...optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from ..policy_of_model import need_modules_of

Precision = Literal["32-true", "bf16-mixed", "16-mixed"] | Policy
_DTYPES = {"32-true": "float32", "bf16-mixed": "bfloat16", "16-mixed": "float16"}  # Lightning's words


class Parts(NamedTuple):
    """What is trained, and what with; region: of forwards, autocast or none. dtype: its name. device: of the model."""

    model: nn.Module
    optimizer: Any
    schedule: LRScheduler
    scaler: GradScaler
    average: AveragedModel | None
    region: AbstractContextManager[Any]
    dtype: str
    device: str


def parts_of(
    where: str,
    model: nn.Module,
    optimizer: Any,
    lr_scheduler: LRScheduler | None,
    precision: Precision,
    ema: float | None,
    scaler: GradScaler | None,
) -> Parts:
    """The parts, checked and put together. where: the caller, for errors; see Trainer for the arguments."""
    _check(where, model, optimizer, lr_scheduler)
    dtype, region = _precision(where, model, precision)
    scaler = GradScaler(enabled=dtype == "float16") if scaler is None else scaler
    schedule = LambdaLR(optimizer, lambda step: 1.0) if lr_scheduler is None else lr_scheduler
    average = None if ema is None else AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema))
    device = str(next(model.parameters()).device)
    return Parts(model, optimizer, schedule, scaler, average, region, dtype, device)


def _check(where: str, model: Any, optimizer: Any, lr_scheduler: Any) -> None:
    if not isinstance(model, nn.Module):
        raise DTypeError(where, "model to be a Module", f"a {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise DTypeError(where, "optimizer to be an Optimizer", f"a {type(optimizer).__name__}")
    if not isinstance(lr_scheduler, LRScheduler | None):
        cure = "call a ReduceLROnPlateau in on_validation_end of a Callback, or in your own loop"
        got = f"a {type(lr_scheduler).__name__}"
        raise DTypeError(where, "lr_scheduler to be one whose step takes no metric", got, cure)
    mine = {id(each) for each in model.parameters()}
    if not any(id(each) in mine for group in optimizer.param_groups for each in group["params"]):
        raise ArgumentError(where, "an optimizer of the model's parameters", "one of others")


def _precision(where: str, model: nn.Module, precision: Any) -> tuple[str, AbstractContextManager[Any]]:
    if isinstance(precision, Policy):
        need_modules_of(precision, model)
        return precision.low_dtype.name, autocast(policy=precision)
    if precision not in _DTYPES:
        needs = f"precision to be {', '.join(map(repr, _DTYPES))} or a Policy"
        raise ArgumentError(where, needs, repr(precision))
    dtype = _DTYPES[precision]
    return dtype, nullcontext() if dtype == "float32" else autocast(dtype=dtype)


def loss_and_metrics(where: str, found: Any) -> dict[str, Tensor]:
    """What a loss function returned, by name: a tensor [] is "loss". Raises DTypeError for anything else."""
    named = {"loss": found} if isinstance(found, Tensor) else found
    values = [*named.values()] if isinstance(named, Mapping) and "loss" in named else [None]
    if wrong := [each for each in values if not isinstance(each, Tensor) or each.ndim]:
        shape = getattr(wrong[0], "shape", None)
        got = f"a {type(found).__name__}" if shape is None else f"a tensor of shape {tuple(shape)}"
        raise DTypeError(where, 'loss(model, batch) to return a tensor [], or a dict of them with "loss"', got)
    return dict(named)


def batch_size(batch: Any) -> int:
    """Samples in a batch: the first axis of its first tensor or array; 1 for a batch without."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return batch_size(batch[0]) if batch else 1
    shape = getattr(batch, "shape", ())
    return int(shape[0]) if shape else 1
