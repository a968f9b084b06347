"""From a recipe to what a run is made of: model, data, optimizer, schedule, scaler, precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from .. import backends, models, nn, optim
from ..amp.grad_scaler import GradScaler
from ..base import dtypes
from ..base.errors import ConfigError
from ..config import Recipe, sections
from ..core.policy import Policy, autocast
from ..optim import lr_scheduler
from ..optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from .input_pipeline import Batch as Batch
from .input_pipeline import Feed as Feed
from .input_pipeline import feed as feed


def model(recipe: Recipe) -> nn.Module:
    """The recipe's model, on its device, drawn from the default random stream."""
    made = _MODELS.get(type(recipe.model), _of_images)(recipe.model, recipe.data).to(recipe.train.device)
    if recipe.amp.parameters == "low":
        for parameter in made.parameters():  # buffers, running statistics among them, stay float32
            parameter.array = backends.backend_of(parameter.array).cast(parameter.array, dtypes.parse(recipe.amp.dtype))
    return made


def _mlp(spec: sections.MLP, data: Any) -> nn.Module:
    return models.mlp(int(np.prod(data.shape)), out_features=data.classes, **_arguments(spec))


def _of_images(spec: Any, data: Any) -> nn.Module:
    return _IMAGES[spec.name](num_classes=data.classes, in_channels=data.shape[0], **_arguments(spec))


def _of_squares(spec: Any, data: Any) -> nn.Module:
    return _IMAGES[spec.name](
        num_classes=data.classes, in_channels=data.shape[0], image_size=data.shape[1], **_arguments(spec)
    )


_IMAGES: dict[str, Callable[..., nn.Module]] = {
    make.__name__: make
    for make in (
        *(models.cnn, models.lenet5, models.alexnet, models.convmixer, models.vit),
        *(models.resnet18, models.resnet34, models.resnet50, models.vgg11, models.vgg13, models.vgg16, models.vgg19),
        *(models.efficientnet_b0, models.efficientnet_b4, models.fcn_resnet50, models.deeplabv3_resnet50),
    )
}


def _wav2letter(spec: sections.Wav2Letter, data: Any) -> nn.Module:
    return models.Wav2Letter(data.classes, **_arguments(spec))


def _bert(spec: sections.BERT, data: Any) -> nn.Module:
    return models.BertForMaskedLM(models.BertConfig(**_arguments(spec)))


def _gpt(spec: sections.GPT, data: Any) -> nn.Module:
    return models.GPT(**_arguments(spec))


def _arguments(section: sections.Section) -> dict[str, Any]:
    return section.model_dump(exclude={"name"})


_MODELS: dict[type, Callable[..., nn.Module]] = {
    sections.MLP: _mlp,
    sections.LeNet5: _of_squares,
    sections.ViT: _of_squares,
    sections.Wav2Letter: _wav2letter,
    sections.BERT: _bert,
    sections.GPT: _gpt,
}


def steps(recipe: Recipe, feed: Feed) -> int:
    """How many updates the recipe asks for."""
    if recipe.train.steps is not None:
        return recipe.train.steps
    assert recipe.train.epochs is not None
    assert feed.per_epoch is not None
    return max(1, recipe.train.epochs * feed.per_epoch // recipe.train.accumulate)


def optimizer(recipe: Recipe, model: nn.Module) -> Any:
    """The recipe's optimizer over all parameters of `model`."""
    return _OPTIMIZERS[recipe.optimizer.name](model.parameters(), **_arguments(recipe.optimizer))


_OPTIMIZERS: dict[str, type[optim.Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(optim.SGD, optim.Adam, optim.AdamW, optim.Adamax, optim.RAdam, optim.NAdam, optim.Adadelta),
        *(optim.Adagrad, optim.RMSprop, optim.Rprop, optim.ASGD, optim.Lion, optim.LAMB, optim.Adafactor),
    )
}


def average(recipe: Recipe, model: nn.Module) -> AveragedModel | None:
    """The recipe's running average of `model`'s weights, or None; made after the optimizer."""
    decay = recipe.train.ema
    return None if decay is None else AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


def schedule(recipe: Recipe, optimizer: Any, steps: int) -> Any:
    """The recipe's learning rate schedule over `steps` updates; warmup steps come first and are among them."""
    spec = recipe.schedule
    if isinstance(spec, sections.OneCycle):
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
    if isinstance(spec, sections.Cosine):
        return lr_scheduler.CosineAnnealingLR(optimizer, steps, spec.eta_min)
    if isinstance(spec, sections.Step):
        return lr_scheduler.StepLR(optimizer, spec.step_size, spec.gamma)
    if isinstance(spec, sections.Linear):
        return lr_scheduler.LinearLR(optimizer, 1.0, spec.end_factor, steps)
    return lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def scaler(recipe: Recipe) -> GradScaler:
    """The recipe's GradScaler: at work for float16, whose gradients would vanish unscaled; disabled for the others."""
    settings = recipe.amp.model_dump(include=_SCALER)
    return GradScaler(enabled=recipe.amp.dtype == "float16", **settings)


_SCALER = {"init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale", "hysteresis"}


def region(recipe: Recipe) -> AbstractContextManager[Any]:
    """What the recipe's forward runs in: autocast under its policy, or nothing for float32."""
    amp = recipe.amp
    off = amp.dtype == "float32"
    make = Policy.fast if amp.policy == "fast" else Policy
    policy = make("bfloat16" if off else amp.dtype, **amp.overrides)  # overrides are checked where they do nothing too
    return nullcontext() if off else autocast(policy=policy)
