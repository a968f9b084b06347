"""Feeds: the data that a recipe names, as the batches of its run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from ..base.errors import ArgumentError, ConfigError
from ..config import Recipe, sections
from ..core import random
from ..core.tensor import Tensor
from ..data import cifar10, digits, mnist, parquet, synthetic, text
from ..data.datasets import Subset
from ..data.image_array import Pictures
from ..data.imagefolder import ImageFolder
from ..data.loader import DataLoader, TensorDataset
from ..data.prefetch import prefetch
from ..models.wav2letter import Wav2Letter
from . import tasks

Batch = tuple[Tensor, ...]  # inputs, and the targets that the task of the model knows
Arrays = tuple[np.ndarray[Any, Any], ...]


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
    return _sampled(recipe, digits.load("train"), digits.load("test"))


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
    """A feed of images kept as bytes: augmented anew in each epoch, held out as they are."""
    changes = data.model_dump(include={"crop", "flip", "cutout"})
    changed = Pictures(*train, data.mean, data.std, **changes, seed=recipe.train.seed)
    return _read(recipe, data, changed, Pictures(*test, data.mean, data.std))


def _table(recipe: Recipe, data: sections.Table) -> Feed:
    rows = parquet.Table(parquet.Columns(data.files, [*data.inputs, data.target]), data.shape)
    held_out = max(1, round(len(rows) * data.validation))
    if held_out >= len(rows):
        raise ConfigError("data.files", "at least two rows, one of them held out", f"{len(rows)}")
    order = random.generator(data.seed, 0).permutation(len(rows))
    return _read(recipe, data, Subset(rows, order[held_out:]), Subset(rows, np.sort(order[:held_out])))


def _read(recipe: Recipe, data: Any, train: Any, test: Any) -> Feed:
    """A feed of datasets whose batches are made when they are asked for, by workers where the recipe wants them."""
    words: dict[str, Any] = {"num_workers": data.workers}
    if data.workers and getattr(data, "processes", False):
        words |= {"multiprocessing_context": "forkserver", "persistent_workers": True}
    size = data.batch_size
    loader = DataLoader(train, size, shuffle=True, generator=random.Stream(recipe.train.seed), **words)
    kept = Subset(test, _spread(len(test), size, recipe.train.eval_batches))
    held_out = DataLoader(kept, size, num_workers=data.workers)
    return Feed(partial(_forever, loader), lambda: map(_of_tensors, held_out), size, "samples", len(loader))


def _images(recipe: Recipe, data: sections.SyntheticImages) -> Feed:
    values = synthetic.images(data.count, tuple(data.shape), data.classes, data.seed)
    return _sampled(recipe, *_parted(values, data.validation))


def _tokens(recipe: Recipe, data: sections.SyntheticTokens) -> Feed:
    assert isinstance(recipe.model, sections.GPT)
    values = synthetic.tokens(data.count, recipe.model.block_size, recipe.model.vocab_size, data.seed)
    return _sampled(recipe, *_parted(values, data.validation))


def _masked(recipe: Recipe, data: sections.SyntheticMasked) -> Feed:
    assert isinstance(recipe.model, sections.BERT)
    values = synthetic.masked_tokens(data.count, data.length, recipe.model.vocab_size, data.seed)
    return _sampled(recipe, *_parted(values, data.validation))


def _maps(recipe: Recipe, data: sections.SyntheticMaps) -> Feed:
    values = synthetic.maps(data.count, tuple(data.shape), data.classes, data.seed)
    return _sampled(recipe, *_parted(values, data.validation))


def _speech(recipe: Recipe, data: sections.SyntheticSpeech) -> Feed:
    assert isinstance(recipe.model, sections.Wav2Letter)
    kind = recipe.model.input_type
    sizes = data.count, recipe.model.num_features, data.length, Wav2Letter.step(kind), data.classes
    sounds, lengths, letters, counts = synthetic.speech(*sizes, data.seed)
    frames = np.array([Wav2Letter.frames(length, kind) for length in lengths.tolist()])
    return _sampled(recipe, *_parted((sounds, frames, letters, counts), data.validation))


def _parted(values: Arrays, share: float) -> tuple[Arrays, Arrays]:
    cut = len(values[0]) - max(1, round(len(values[0]) * share))
    return tuple(each[:cut] for each in values), tuple(each[cut:] for each in values)


def _sampled(recipe: Recipe, train: Arrays, test: Arrays) -> Feed:
    """A feed of arrays that are shuffled anew in each epoch."""
    _need_finite("training", train[0])
    _need_finite("held-out", test[0])
    size = recipe.data.batch_size
    loader = DataLoader(_dataset(train), size, shuffle=True, generator=random.Stream(recipe.train.seed))
    kept = _spread(len(test[0]), size, recipe.train.eval_batches)
    held_out = DataLoader(_dataset([each[kept] for each in test]), size)
    unit = tasks.of(recipe.model).unit
    per_batch = size * test[1][0].size if unit == "tokens" else size
    return Feed(partial(_forever, loader), lambda: map(_of_tensors, held_out), per_batch, unit, len(loader))


def _dataset(arrays: Iterable[np.ndarray[Any, Any]]) -> TensorDataset:
    return TensorDataset(*map(Tensor, arrays))


def _forever(loader: DataLoader, first: int) -> Iterator[Batch]:
    epoch, position = divmod(first, len(loader))
    loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "position": position})
    while True:
        yield from map(_of_tensors, loader)


def _of_tensors(batch: Any) -> Batch:
    return tuple(batch)


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
    # There are no more windows than bytes: a larger count would only repeat some.
    starts = text.even_starts(held_out, context, None if wanted is None else min(wanted, len(held_out)))

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
    sections.SyntheticMasked: _masked,
    sections.SyntheticMaps: _maps,
    sections.SyntheticSpeech: _speech,
    sections.Table: _table,
    sections.Text: _text,
}
