"""The part of the training and evaluation data that a rank reads: of each batch, or of each update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..base.errors import ConfigError
from ..config import Recipe
from ..data.loader import DataLoader
from .ranks import Ranks
from .step import Batch


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
    share them.
    """

    samples: int
    microbatches: int
    batches: int
    ranks: Ranks

    @classmethod
    def of(cls, recipe: Recipe, ranks: Ranks) -> Updates | None:
        """Those of a recipe; None without parallel.deterministic. Raises ConfigError for ranks that do not divide."""
        count, accumulate = recipe.parallel.microbatches, recipe.train.accumulate
        if not recipe.parallel.deterministic:
            return None
        if count % ranks.size:
            ranks.in_agreement = True
            raise ConfigError("parallel.microbatches", f"a multiple of the {ranks.size} ranks", str(count))
        return cls(recipe.data.batch_size * accumulate, count, accumulate, ranks)

    @property
    def rows(self) -> int:
        """Samples in a microbatch."""
        return self.samples // self.microbatches

    @property
    def mine(self) -> range:
        """The numbers of this rank's microbatches."""
        found: range = self.ranks.share(range(self.microbatches))
        return found

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
