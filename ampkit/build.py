"""From a recipe to what a run is made of: model, data, optimizer, schedule, scaler, precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from . import backends, models, nn, optim
from .config import Recipe, sections
from .core import dtypes, random
from .core.errors import ArgumentError, ConfigError
from .core.policy import Policy, autocast
from .core.tensor import Tensor
from .data import cifar10, digits, mnist, synthetic, text
from .data.datasets import Subset
from .data.imagefolder import ImageFolder
from .data.loader import DataLoader, TensorDataset
from .data.pictures import Pictures
from .data.prefetch import prefetch
from .optim import lr_scheduler
from .optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from .scaler import GradScaler

Batch = tuple[Tensor, Tensor]  # inputs, and the integer targets [N] or [N, T]
Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Feed:
    """The data of a run.

    batches: makes what to train on, without end, from the batch of a number on. held_out: makes one pass over what to
    evaluate on. per_batch: how many `unit` (samples, tokens) a batch holds. per_epoch: batches in a pass over the
    training data, None if it has no end.
    """

    batches: Callable[[int], Iterator[Batch]]
    held_out: Callable[[], Iterator[Batch]]
    per_batch: int
    unit: str
    per_epoch: int | None


def model(recipe: Recipe) -> nn.Module:
    """The recipe's model, on its device, drawn from the default random stream."""
    made = _MODELS[type(recipe.model)](recipe.model, recipe.data).to(recipe.train.device)
    if recipe.amp.parameters == "low":
        for parameter in made.parameters():  # buffers, running statistics among them, stay float32
            parameter.array = backends.of(parameter.array).cast(parameter.array, dtypes.parse(recipe.amp.dtype))
    return made


def _mlp(spec: sections.MLP, data: Any) -> nn.Module:
    return models.mlp(int(np.prod(data.shape)), out_features=data.classes, **_arguments(spec))


def _cnn(spec: sections.CNN, data: Any) -> nn.Module:
    return models.cnn(data.shape[0], data.classes, **_arguments(spec))


def _resnet(spec: sections.ResNet, data: Any) -> nn.Module:
    sizes = {"resnet18": models.resnet18, "resnet34": models.resnet34, "resnet50": models.resnet50}
    return sizes[spec.name](data.classes, in_channels=data.shape[0], **_arguments(spec))


def _lenet5(spec: sections.LeNet5, data: Any) -> nn.Module:
    return models.lenet5(data.shape[0], data.classes, data.shape[1])


def _convmixer(spec: sections.ConvMixer, data: Any) -> nn.Module:
    return models.convmixer(num_classes=data.classes, in_channels=data.shape[0], **_arguments(spec))


def _vit(spec: sections.ViT, data: Any) -> nn.Module:
    return models.vit(data.shape[1], num_classes=data.classes, in_channels=data.shape[0], **_arguments(spec))


def _gpt(spec: sections.GPT, data: Any) -> nn.Module:
    return models.GPT(**_arguments(spec))


def _arguments(section: sections.Section) -> dict[str, Any]:
    return section.model_dump(exclude={"name"})


_MODELS: dict[type, Callable[..., nn.Module]] = {
    sections.MLP: _mlp,
    sections.CNN: _cnn,
    sections.ResNet: _resnet,
    sections.LeNet5: _lenet5,
    sections.ConvMixer: _convmixer,
    sections.ViT: _vit,
    sections.GPT: _gpt,
}


def feed(recipe: Recipe) -> Feed:
    """The recipe's data. Raises ConfigError or ArgumentError for data that is missing, too short or not finite."""
    found, device = _FEEDS[type(recipe.data)](recipe, recipe.data), recipe.train.device
    batches, held_out = found.batches, found.held_out
    return replace(
        found,
        batches=lambda first: prefetch(batches(first), device),
        held_out=lambda: prefetch(held_out(), device),
    )


def _digits(recipe: Recipe, data: sections.Digits) -> Feed:
    return _sampled(recipe, digits.load("train"), digits.load("test"), "samples")


def _mnist(recipe: Recipe, data: sections.MNIST) -> Feed:
    train, test = (mnist.load(split, data.folder, data.download) for split in ("train", "test"))
    return _pictured(recipe, data, train, test)


def _cifar10(recipe: Recipe, data: sections.CIFAR10) -> Feed:
    train, test = (cifar10.load(split, data.folder, data.download) for split in ("train", "test"))
    return _pictured(recipe, data, train, test)


def _folders(recipe: Recipe, data: sections.Images) -> Feed:
    train = ImageFolder(data.folder, data.shape)
    if len(train.classes) != data.classes:
        raise ConfigError("data.classes", f"{len(train.classes)}, the folders in {data.folder}", f"{data.classes}")
    test = ImageFolder(data.held_out, data.shape, train.classes)
    return _pictured(recipe, data, (train, train.labels), (test, test.labels))


def _pictured(recipe: Recipe, data: Any, train: tuple[Any, Any], test: tuple[Any, Any]) -> Feed:
    """A feed of images kept as bytes: shuffled and augmented anew in each epoch, held out as they are."""
    seed, size = recipe.train.seed, data.batch_size
    changes = data.model_dump(include={"crop", "flip", "cutout"})
    changed = Pictures(*train, data.mean, data.std, **changes, seed=seed)
    loader = DataLoader(changed, size, shuffle=True, num_workers=data.workers, generator=random.Stream(seed))
    kept = _spread(len(test[0]), size, recipe.train.eval_batches)
    held_out = DataLoader(Subset(Pictures(*test, data.mean, data.std), kept), size, num_workers=data.workers)
    return Feed(partial(_forever, loader), lambda: map(_pair, held_out), size, "samples", len(loader))


def _images(recipe: Recipe, data: sections.SyntheticImages) -> Feed:
    values = synthetic.images(data.count, tuple(data.shape), data.classes, data.seed)
    return _sampled(recipe, *_parted(values, data.validation), "samples")


def _tokens(recipe: Recipe, data: sections.SyntheticTokens) -> Feed:
    assert isinstance(recipe.model, sections.GPT)
    values = synthetic.tokens(data.count, recipe.model.block_size, recipe.model.vocab_size, data.seed)
    return _sampled(recipe, *_parted(values, data.validation), "tokens")


def _parted(values: Arrays, share: float) -> tuple[Arrays, Arrays]:
    cut = len(values[0]) - max(1, round(len(values[0]) * share))
    return (values[0][:cut], values[1][:cut]), (values[0][cut:], values[1][cut:])


def _sampled(recipe: Recipe, train: Arrays, test: Arrays, unit: str) -> Feed:
    """A feed of arrays that are shuffled anew in each epoch."""
    _need_finite("training", train[0])
    _need_finite("held-out", test[0])
    size = recipe.data.batch_size
    loader = DataLoader(_dataset(train), size, shuffle=True, generator=random.Stream(recipe.train.seed))
    kept = _spread(len(test[0]), size, recipe.train.eval_batches)
    held_out = DataLoader(_dataset((test[0][kept], test[1][kept])), size)
    per_sample = test[1][0].size
    return Feed(partial(_forever, loader), lambda: map(_pair, held_out), size * per_sample, unit, len(loader))


def _dataset(arrays: Arrays) -> TensorDataset:
    return TensorDataset(*map(Tensor, arrays))


def _forever(loader: DataLoader, first: int) -> Iterator[Batch]:
    epoch, position = divmod(first, len(loader))
    loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "position": position})
    while True:
        yield from map(_pair, loader)


def _pair(batch: Any) -> Batch:
    return batch[0], batch[1]


def _spread(length: int, size: int, batches: int | None) -> np.ndarray[Any, Any]:
    """The rows to evaluate on: all, or enough for `batches`, evenly spaced."""
    wanted = length if batches is None else min(length, batches * size)
    return np.linspace(0, length - 1, wanted).astype(np.int64)


def _need_finite(part: str, values: np.ndarray[Any, Any]) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        rows = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))
        got = f"NaN or infinity in {len(rows)} of {len(values)} samples, first in number {rows[0]}"
        raise ArgumentError(f"the {part} data", "finite values", got, "leave these samples out, or fill the gaps")


def _text(recipe: Recipe, data: sections.Text) -> Feed:
    assert isinstance(recipe.model, sections.GPT)
    train, held_out = text.split(text.corpus(data.path, data.limit), data.validation)
    context, size = recipe.model.block_size, data.batch_size
    text.even_starts(train, context, 1)
    wanted = None if recipe.train.eval_batches is None else recipe.train.eval_batches * size
    starts = text.even_starts(held_out, context, wanted)

    def windows(source: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> Batch:
        inputs, targets = text.windows(source, at, context)
        return Tensor(inputs), Tensor(targets)

    def draws(first: int) -> Iterator[Batch]:
        for number in count(first):
            # Philox has a key of two words: the second sets these draws apart from the weights' and dropout's.
            draw = random.generator(recipe.train.seed | 1 << 64, number)
            yield windows(train, text.random_starts(train, context, size, draw))

    def side_by_side() -> Iterator[Batch]:
        return (windows(held_out, starts[i : i + size]) for i in range(0, len(starts), size))

    return Feed(draws, side_by_side, size * context, "tokens", None)


_FEEDS: dict[type, Callable[..., Feed]] = {
    sections.Digits: _digits,
    sections.MNIST: _mnist,
    sections.CIFAR10: _cifar10,
    sections.Images: _folders,
    sections.SyntheticImages: _images,
    sections.SyntheticTokens: _tokens,
    sections.Text: _text,
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
        *(optim.Adagrad, optim.RMSprop, optim.Rprop, optim.Lion, optim.LAMB, optim.Adafactor),
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
