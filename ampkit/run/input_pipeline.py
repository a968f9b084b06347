"""The input pipeline: the data set of a recipe as batches on its device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import ArgumentError, ConfigError
from ..base.registry import DATASETS, Splits
from ..config import Recipe
from ..core import random
from ..core.tensor import Tensor
from ..data import text
from ..data.augment import AUGMENTATIONS, AugmentedImages
from ..data.collate import prefetch
from ..data.datasets import Subset
from ..data.loader import DataLoader, TensorDataset
from ..distributed.deterministic import mine_of
from .ranks import ALONE, Ranks
from .step import Batch, objective_of

Arrays = tuple[np.ndarray[Any, Any], ...]


@dataclass(frozen=True)
class InputPipeline:
    """The batches of a run.

    train: train(first) yields the training batches from number `first` on, without end; of a stream train(first, place)
    goes to a place of `places`, by the number of the next batch, which has the newest. held_out: held_out() yields the
    evaluation batches once. samples_per_batch: how many `unit` (samples, tokens) a batch holds. batches_per_epoch: None
    for data without epochs. about: what the model's later use needs and checkpoints hold: the names of the `classes`,
    `mean` and `std` of images, the `identity` of the data; where they were found in the data, the `sizes` that the
    model follows from, how rows of a `table` become numbers, and the `tokenizer` of text. notes: what the user should
    know of the data.
    """

    train: Callable[..., Iterator[Batch]]
    held_out: Callable[[], Iterator[Batch]]
    samples_per_batch: int
    unit: str
    batches_per_epoch: int | None
    about: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    places: Mapping[int, Any] = field(default_factory=dict)

    def need_same_data(self, where: str, about: Mapping[str, Any]) -> None:
        """Raise ConfigError if `about`, of a checkpoint, is of other files, or of a table that became other numbers."""
        before, now = (each.get("identity") for each in (about, self.about))
        if before and now and list(before) != list(now):
            needs = "the files that the run was trained and evaluated on, in the same order"
            cure = "bring back what was removed, move away what was added, or start another run"
            raise ConfigError(where, needs, "others", cure)
        then, table = (each.get("table") for each in (about, self.about))
        if table is not None and then is not None and table != then:
            columns = zip([*table["inputs"], table["target"]], [*then["inputs"], then["target"]], strict=False)
            name = next((one["name"] for one, other in columns if one != other), "the number of columns")
            cure = "bring back the files of the run, or start another run"
            raise ConfigError(where, "the table that the run began with", f"another one, in {name}", cure)
        if about.get("tokenizer") != self.about.get("tokenizer"):
            raise ConfigError(where, "the tokenizer that the run began with", "another one", "bring back its files")


def input_pipeline(recipe: Recipe, ranks: Ranks = ALONE) -> InputPipeline:
    """The input pipeline of a recipe; batches are copied to its device ahead of their use.

    ranks: of which this one gets its part of each batch; a training batch then ends with the weight of its mean loss.

    Raises ConfigError or ArgumentError for data that is missing, too short or not finite.
    """
    entry, device = DATASETS[recipe.data.name], recipe.train.device
    from_model = {name: getattr(recipe.model, name) for name in entry.from_model}
    loaded = entry.load(**recipe.data.model_dump(include=entry.keys), **from_model)
    pipeline = _PIPELINES[entry.loading](recipe, ranks, loaded)
    lists = ("classes", "mean", "std", "identity")
    about: dict[str, Any] = {name: list(getattr(loaded, name, ())) for name in lists}
    if getattr(loaded, "tokenizer", None) is not None:
        about["tokenizer"] = loaded.tokenizer.state
    about |= {name: dict(found) for name in ("sizes", "table") if (found := getattr(loaded, name, None))}
    return replace(
        pipeline,
        train=lambda *where: prefetch(pipeline.train(*where), device),
        held_out=lambda: prefetch(pipeline.held_out(), device),
        about=about,
        notes=getattr(loaded, "notes", ()),
    )


def _from_generated(recipe: Recipe, ranks: Ranks, arrays: Arrays) -> InputPipeline:
    train = len(arrays[0]) - max(1, round(len(arrays[0]) * recipe.data.validation))
    return _from_arrays(recipe, ranks, Splits(tuple(a[:train] for a in arrays), tuple(a[train:] for a in arrays)))


def _from_arrays(recipe: Recipe, ranks: Ranks, splits: Splits) -> InputPipeline:
    """Batches of arrays, shuffled in each epoch."""
    _need_finite("training", splits.train[0])
    _need_finite("held-out", splits.held_out[0])
    size = recipe.data.batch_size
    loader = _parts(recipe, ranks, _dataset(splits.train))
    indices = _evenly_spaced(len(splits.held_out[0]), size, recipe.train.eval_batches)
    mine, rows = _share_of_evaluation(recipe, ranks, indices)
    held_out = _in_order(_dataset([each[mine] for each in splits.held_out]), rows)
    unit = objective_of(recipe).unit
    per_batch = size * splits.held_out[1][0].size if unit == "tokens" else size
    return InputPipeline(loader.endless, lambda: map(tuple, held_out), per_batch, unit, loader.batches_per_epoch)


def _from_images(recipe: Recipe, ranks: Ranks, splits: Splits) -> InputPipeline:
    """Batches of images stored as bytes; training images are augmented anew in each epoch."""
    augmentation = recipe.data.model_dump(include=AUGMENTATIONS)
    normalized = partial(AugmentedImages, mean=splits.mean, std=splits.std)
    train = normalized(*splits.train, **augmentation, num_classes=recipe.data.classes, seed=recipe.train.seed)
    return _from_datasets(recipe, ranks, Splits(train, normalized(*splits.held_out)))


def _from_datasets(recipe: Recipe, ranks: Ranks, splits: Splits) -> InputPipeline:
    """Batches that datasets make on demand, in workers if the recipe has them."""
    data, size = recipe.data, recipe.data.batch_size
    options: dict[str, Any] = {"num_workers": data.workers}
    if data.workers and getattr(data, "processes", False):
        options |= {"multiprocessing_context": "forkserver", "persistent_workers": True}
    loader = _parts(recipe, ranks, splits.train, **options)
    indices = _evenly_spaced(len(splits.held_out), size, recipe.train.eval_batches)
    mine, rows = _share_of_evaluation(recipe, ranks, indices)
    held_out = _in_order(Subset(splits.held_out, mine), rows, num_workers=data.workers)
    return InputPipeline(loader.endless, lambda: map(tuple, held_out), size, "samples", loader.batches_per_epoch)


def _from_text(recipe: Recipe, ranks: Ranks, splits: Splits) -> InputPipeline:
    """Windows of bytes or tokens: random ones to train on, evenly spaced ones to evaluate on."""
    _need_vocabulary(recipe, splits.tokenizer)
    (train, held_out, *_), context, size = splits, recipe.model.block_size, recipe.data.batch_size
    text.even_starts(train, context, 1)
    batches = recipe.train.eval_batches
    # There are no more windows than bytes: a larger count would only repeat some.
    starts = text.even_starts(held_out, context, None if batches is None else min(batches * size, len(held_out)))
    starts, rows = _share_of_evaluation(recipe, ranks, starts)

    def windows(source: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> Batch:
        inputs, targets = text.windows(source, at, context)
        return Tensor(inputs), Tensor(targets)

    def random_windows(first: int) -> Iterator[Batch]:
        updates = Updates.of(recipe, ranks)
        size_of_draw, number_of_draw = (size, first) if updates is None else (updates.samples, updates.number(first))
        for number in count(number_of_draw):
            # Philox has a key of two words: the second sets these draws apart from the weights' and dropout's.
            draw = random.generator(recipe.train.seed | 1 << 64, number)
            drawn = text.random_starts(train, context, size_of_draw, draw)
            if updates is None:
                yield ranks.weighted(windows(train, drawn[ranks.part(size)]), size)
            else:
                yield from (windows(train, drawn[part]) for part in updates.parts)

    def even_windows() -> Iterator[Batch]:
        return (windows(held_out, starts[i : i + rows]) for i in range(0, len(starts), rows))

    return InputPipeline(random_windows, even_windows, size * context, "tokens", None)


def _need_vocabulary(recipe: Recipe, tokenizer: Any) -> None:
    if tokenizer is not None and recipe.model.vocab_size < tokenizer.size:
        needs = f"at least {tokenizer.size}, the tokens of {tokenizer.name}"
        raise ConfigError("model.vocab_size", needs, str(recipe.model.vocab_size))


def _from_stream(recipe: Recipe, ranks: Ranks, splits: Splits) -> InputPipeline:
    """Batches of a stream of another library, whose place checkpoints hold."""
    if ranks.size > 1:
        raise ConfigError("data.name", "data that ranks can divide, on several of them", repr(recipe.data.name))
    size, places = recipe.data.batch_size, dict[int, Any]()
    (source, collate), (held_out, _) = splits.train, splits.held_out

    def train(first: int, place: Any = None) -> Iterator[Batch]:
        if place is not None:
            places[first] = place
        return batches(first, place)

    def batches(first: int, place: Any) -> Iterator[Batch]:
        loader, number = DataLoader(source, size, collate_fn=collate), first if place is not None else 0
        if place is not None:
            loader.load_state_dict(place)
        while True:
            before = number
            for batch in loader:
                number += 1
                places[number] = loader.state_dict()
                places.pop(number - _PLACES, None)
                if number > first:  # without a place those before are read again
                    yield tuple(batch)
            if number == before:
                raise ConfigError("data", "a sample in every epoch of the stream", "none")

    def evaluated() -> Iterator[Batch]:
        return map(tuple, islice(DataLoader(held_out, size, collate_fn=collate), recipe.train.eval_batches))

    return InputPipeline(train, evaluated, size, "samples", None, places=places)


_PLACES = 64  # newest places that are kept: above the batches of an update with those that are copied ahead


_PIPELINES: dict[str, Callable[[Recipe, Ranks, Any], InputPipeline]] = {
    "arrays": _from_arrays,
    "generated": _from_generated,
    "images": _from_images,
    "dataset": _from_datasets,
    "text": _from_text,
    "stream": _from_stream,
}


def _dataset(arrays: Iterable[np.ndarray[Any, Any]]) -> TensorDataset:
    return TensorDataset(*map(Tensor, arrays))


class PartsOfBatches(DataLoader):
    """A rank's part of each batch."""

    def __init__(self, ranks: Ranks, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._ranks = ranks

    @property
    def batches_per_epoch(self) -> int:
        """Batches, of all ranks, in an epoch."""
        return len(self)

    def _keys(self, epoch: int) -> Iterator[Any]:
        return (keys[self._ranks.part(len(keys))] for keys in super()._keys(epoch))

    def endless(self, first: int) -> Iterator[Batch]:
        """The parts of the batches of epoch after epoch, from number `first` on."""
        epoch, position = divmod(first, len(self))
        self.load_state_dict({**self.state_dict(), "epoch": epoch, "position": position})
        assert self.batch_size is not None
        while True:
            left = len(self.dataset) - self.position * self.batch_size
            for batch in self:
                yield self._ranks.weighted(tuple(batch), min(left, self.batch_size))
                left -= self.batch_size


class Updates(NamedTuple):
    """How the samples of an update are cut into microbatches, with parallel.deterministic.

    They are numbered through its batches, so microbatch i has the same samples on any number of ranks, and however many
    batches there are. samples: of an update. microbatches: how many there are. batches: of an update. ranks: those that
    share them. is_sharded: whether they share the parameters out, too.
    """

    samples: int
    microbatches: int
    batches: int
    ranks: Ranks
    is_sharded: bool = False

    @classmethod
    def of(cls, recipe: Recipe, ranks: Ranks) -> Updates | None:
        """Those of a recipe; None without parallel.deterministic. Raises ConfigError for ranks that do not divide."""
        count, accumulate = recipe.parallel.microbatches, recipe.train.accumulate
        if not recipe.parallel.deterministic:
            return None
        if count % ranks.data_size:
            ranks.in_agreement = True
            parts = "ranks" if ranks.data_size == ranks.size else "groups of ranks"
            needs = f"a number of {parts} that divides parallel.microbatches={count}, a power of 2"
            raise ConfigError("parallel.deterministic", needs, str(ranks.data_size))
        is_sharded = recipe.parallel.stage > 1
        return cls(recipe.data.batch_size * accumulate, count, accumulate, ranks, is_sharded)

    @property
    def rows(self) -> int:
        """Samples in a microbatch."""
        return self.samples // self.microbatches

    @property
    def mine(self) -> range:
        """The numbers of this rank's microbatches."""
        return mine_of(self.microbatches, self.ranks.data_rank, self.ranks.data_size, self.is_sharded)

    @property
    def parts(self) -> Sequence[slice]:
        """This rank's microbatches, as samples of the update."""
        return [slice(i * self.rows, (i + 1) * self.rows) for i in self.mine]

    def number(self, batches: int) -> int:
        """The number of the update that follows this many batches."""
        return batches // self.batches

    def share(self, items: Any) -> Any:
        """This rank's share of items to evaluate on: whole batches of `rows`, the last of which may be smaller."""
        batches = self.ranks.share(range(-(-len(items) // self.rows)))
        return items[batches.start * self.rows : batches.stop * self.rows]


class PartsOfUpdates(DataLoader):
    """A rank's microbatches of each update. What does not fill an update at the end of an epoch is left out."""

    def __init__(self, updates: Updates, dataset: Any, **options: Any):
        super().__init__(dataset, updates.rows, **options)
        self._updates = updates
        if not len(self):
            needs = f"{updates.samples} samples or more, those of an update"
            raise ConfigError("the training data", needs, str(len(dataset)), "choose a smaller data.batch_size")

    def __len__(self) -> int:
        """Microbatches of this rank in an epoch."""
        return len(self.dataset) // self._updates.samples * len(self._updates.mine)

    @property
    def batches_per_epoch(self) -> int:
        """Batches, of all ranks, in an epoch."""
        return len(self.dataset) // self._updates.samples * self._updates.batches

    def _keys(self, epoch: int) -> Iterator[Any]:
        order, size = self._order(epoch), self._updates.samples
        for begin in range(0, len(order) - size + 1, size):
            yield from (order[begin : begin + size][part] for part in self._updates.parts)

    def endless(self, first: int) -> Iterator[Batch]:
        """The microbatches of epoch after epoch, from those of the update that follows `first` batches on."""
        epoch, position = divmod(self._updates.number(first) * len(self._updates.mine), len(self))
        self.load_state_dict({**self.state_dict(), "epoch": epoch, "position": position})
        while True:
            yield from map(tuple, self)


def _parts(recipe: Recipe, ranks: Ranks, dataset: Any, **options: Any) -> PartsOfBatches | PartsOfUpdates:
    """This rank's parts of the training data, shuffled in each epoch."""
    options |= {"shuffle": True, "generator": random.Stream(recipe.train.seed)}
    updates = Updates.of(recipe, ranks)
    if updates is None:
        return PartsOfBatches(ranks, dataset, recipe.data.batch_size, **options)
    return PartsOfUpdates(updates, dataset, **options)


def _share_of_evaluation(recipe: Recipe, ranks: Ranks, items: Any) -> tuple[Any, int]:
    """This rank's share of the items to evaluate on, and how many are in a batch."""
    updates = Updates.of(recipe, ranks)
    if updates is None:
        return ranks.share(items), max(1, recipe.data.batch_size // ranks.data_size)
    return updates.share(items), updates.rows


def _in_order(dataset: Any, batch_size: int, **options: Any) -> Iterable[Any]:
    """The batches of a rank's share of the held-out data, which may be empty."""
    return DataLoader(dataset, max(1, batch_size), **options) if len(dataset) else ()


def _evenly_spaced(length: int, batch_size: int, batches: int | None) -> Any:
    """The indices to evaluate on: all, or enough for `batches`, evenly spaced."""
    wanted = length if batches is None else min(length, batches * batch_size)
    return np.linspace(0, length - 1, wanted).astype(np.int64)


def _need_finite(split: str, values: np.ndarray[Any, Any]) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        rows = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))
        got = f"NaN or infinity in {len(rows)} of {len(values)} samples, first in number {rows[0]}"
        raise ArgumentError(f"the {split} data", "finite values", got, "leave these samples out, or fill the gaps")
