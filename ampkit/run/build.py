"""Build a run from a recipe: model, optimizer, schedule, gradient scaler, precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

from .. import backends, nn
from ..amp.grad_scaler import GradScaler
from ..base import dtypes
from ..base.errors import ConfigError
from ..base.registry import MODELS, OPTIMIZERS
from ..config import Recipe, Section
from ..core.module_path import need_modules
from ..core.policy import Policy, autocast
from ..debug import Ranges
from ..optim import lr_scheduler
from ..optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from .input_pipeline import InputPipeline


def model(recipe: Recipe) -> nn.Module:
    """The recipe's model, on its device, its weights drawn from the default random stream."""
    entry = MODELS[recipe.model.name]
    arguments = _arguments(recipe.model) | {name: _FROM_DATA[name](recipe.data) for name in entry.from_data}
    built: nn.Module = entry.build(**arguments)
    if recipe.parallel.sync_batchnorm:
        built = nn.SyncBatchNorm.convert_sync_batchnorm(built)
    built = built.to(recipe.train.device)
    if recipe.amp.parameters == "low":
        dtype = dtypes.parse(recipe.amp.dtype)
        for parameter in built.parameters():  # buffers, running statistics among them, stay float32
            parameter.array = backends.backend_of(parameter.array).cast(parameter.array, dtype)
    return built


_FROM_DATA: dict[str, Callable[[Any], int]] = {
    "in_features": lambda data: prod(data.shape),
    "in_channels": lambda data: data.shape[0],
    "image_size": lambda data: data.shape[1],
    "out_features": lambda data: data.classes,
    "num_classes": lambda data: data.classes,
}


def _arguments(section: Section) -> dict[str, Any]:
    return section.model_dump(exclude={"name"})


def ranges(recipe: Recipe, model: nn.Module) -> Ranges | None:
    """What samples the ranges of the layers of `model`, or None."""
    every = recipe.debug.ranges_every
    return Ranges(model, every) if every else None


def parallel(recipe: Recipe) -> dict[str, Any]:
    """The options of DistributedDataParallel."""
    section = recipe.parallel
    wire = None if section.wire_dtype == "float32" else section.wire_dtype
    return {"wire_dtype": wire, "bucket_cap_mb": section.bucket_mb}


def steps(recipe: Recipe, pipeline: InputPipeline) -> int:
    """The number of updates of the recipe."""
    if recipe.train.steps is not None:
        return recipe.train.steps
    assert recipe.train.epochs is not None
    assert pipeline.batches_per_epoch is not None
    return max(1, recipe.train.epochs * pipeline.batches_per_epoch // recipe.train.accumulate)


def optimizer(recipe: Recipe, model: nn.Module) -> Any:
    """The recipe's optimizer over all parameters of `model`."""
    return OPTIMIZERS[recipe.optimizer.name].build(model.parameters(), **_arguments(recipe.optimizer))


def average(recipe: Recipe, model: nn.Module) -> AveragedModel | None:
    """The recipe's moving average of `model`'s weights, or None; built after the optimizer."""
    decay = recipe.train.ema
    return None if decay is None else AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


def schedule(recipe: Recipe, optimizer: Any, steps: int) -> Any:
    """The recipe's learning rate schedule over `steps` updates, which include those of the warmup."""
    spec = recipe.schedule
    if spec.name == "onecycle":
        peak = recipe.optimizer.lr
        return lr_scheduler.OneCycleLR(optimizer, peak, steps, cycle_momentum=False, **_arguments(spec))
    if spec.warmup >= steps:
        raise ConfigError("schedule.warmup", f"less than the {steps} steps of the run", str(spec.warmup))
    after = _after_warmup(spec, optimizer, steps - spec.warmup)
    if not spec.warmup:
        return after
    rise = lr_scheduler.LinearLR(optimizer, 1 / (spec.warmup + 1), 1.0, spec.warmup)
    return lr_scheduler.SequentialLR(optimizer, [rise, after], [spec.warmup])


def _after_warmup(spec: Any, optimizer: Any, steps: int) -> Any:
    if spec.name == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, steps, spec.eta_min)
    if spec.name == "step":
        return lr_scheduler.StepLR(optimizer, spec.step_size, spec.gamma)
    if spec.name == "linear":
        return lr_scheduler.LinearLR(optimizer, 1.0, spec.end_factor, steps)
    return lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def scaler(recipe: Recipe) -> GradScaler:
    """The recipe's GradScaler: enabled for float16, whose gradients would underflow unscaled; disabled otherwise."""
    settings = recipe.amp.model_dump(include=_SCALER)
    return GradScaler(enabled=recipe.amp.dtype == "float16", **settings)


_SCALER = {"init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale", "hysteresis"}


def region(recipe: Recipe, model: nn.Module) -> AbstractContextManager[Any]:
    """The context of the recipe's forward: autocast with its policy, or nothing for float32.

    Raises ConfigError for an unknown op, and for an entry of amp.modules that no module of `model` matches.
    """
    amp = recipe.amp
    off = amp.dtype == "float32"
    make = Policy.fast if amp.policy == "fast" else Policy
    # Made for float32 too, so that overrides are checked also where they have no effect.
    overrides: dict[str, Any] = amp.overrides
    policy = make("bfloat16" if off else amp.dtype, modules=amp.modules, **overrides)
    need_modules(amp.modules, [path for path, _ in model.named_modules()])
    return nullcontext() if off else autocast(policy=policy)
