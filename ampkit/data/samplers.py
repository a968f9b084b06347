"""Samplers: the order of items or batches in a DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import count, islice, repeat
from typing import Any, Generic, TypeVar

import numpy as np

from ..base.errors import ArgumentError, DTypeError
from ..core import random
from ..core.arguments import checked_constructor, shown
from ..core.tensor import Tensor

_Key = TypeVar("_Key", covariant=True)


_BLOCK = 1 << 16  # indices drawn at once, with replacement


class Sampler(Generic[_Key]):
    """The order in which a DataLoader reads items: a subclass implements `__iter__` and, if it can, `__len__`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        checked_constructor(cls)

    def __init__(self, data_source: Any = None):
        pass

    def __iter__(self) -> Iterator[_Key]:
        raise NotImplementedError(f"{type(self).__name__}.__iter__")


def _need_length(where: str, data_source: Any) -> None:
    # Here, since the check of an annotation reads every item of a list.
    if not isinstance(data_source, Sized) or getattr(data_source, "ndim", 1) == 0:  # an array of no axes has none
        raise DTypeError(where, "a data_source with a length", shown(data_source))


class SequentialSampler(Sampler[int]):
    """The indices 0, 1, 2, ... of `data_source` in order."""

    def __init__(self, data_source: Any):
        _need_length("SequentialSampler", data_source)
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """`num_samples` random indices of `data_source`: with replacement, or without, one permutation after the other.

    num_samples: the length of data_source by default. generator: a random stream, by default the one of `manual_seed`;
    each iteration takes one draw of it, when it is asked for its first index.
    Raises ArgumentError for num_samples below 1, DTypeError for a replacement that is no bool.
    """

    def __init__(
        self,
        data_source: Any,
        replacement: Any = False,
        num_samples: int | None = None,
        generator: random.Stream | None = None,
    ):
        _need_length("RandomSampler", data_source)
        if not isinstance(replacement, bool):
            raise DTypeError("RandomSampler", "replacement of True or False", shown(replacement))
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._num_samples = num_samples
        if not len(data_source):
            raise ArgumentError("RandomSampler", "a data_source with items", "one of none")
        if self.num_samples < 1:
            raise ArgumentError("RandomSampler", "num_samples from 1", f"{self.num_samples}")

    @property
    def num_samples(self) -> int:
        """The number of indices per iteration."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        draw, total = random.next_draw(self.generator), len(self.data_source)
        if self.replacement:
            blocks = (draw.integers(0, total, min(_BLOCK, self.num_samples)) for _ in count())
        else:
            blocks = (draw.permutation(total) for _ in count())
        yield from islice((i for block in blocks for i in block.tolist()), self.num_samples)

    def __len__(self) -> int:
        return self.num_samples


class ForeverSampler(Sampler[None]):
    """None, again and again: that of a loader whose dataset is only iterated."""

    def __iter__(self) -> Iterator[None]:
        return repeat(None)


class SubsetRandomSampler(Sampler[int]):
    """The items of `indices` in random order; generator: see RandomSampler."""

    def __init__(self, indices: Sequence[int], generator: random.Stream | None = None):
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        for i in random.next_draw(self.generator).permutation(len(self.indices)).tolist():
            yield self.indices[i]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """`num_samples` indices, each drawn with a probability proportional to its weight; generator: see RandomSampler.

    weights [n]: one per item. Raises ArgumentError for negative or non-finite weights, all zeros, or num_samples below
    1 or, without replacement, above the number of positive weights.
    """

    def __init__(
        self,
        weights: Tensor | Iterable[float],
        num_samples: int,
        replacement: bool = True,
        generator: random.Stream | None = None,
    ):
        given = weights.numpy(force=True) if isinstance(weights, Tensor) else list(weights)
        self.weights = np.asarray(given, np.float64)
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator
        good = self.weights.ndim == 1 and np.isfinite(self.weights).all() and (self.weights >= 0).all()
        most = np.count_nonzero(self.weights)
        if not good or not most or num_samples < 1 or (not replacement and num_samples > most):
            needs = "finite weights from 0, not all 0, and num_samples from 1 to what they can give"
            raise ArgumentError("WeightedRandomSampler", needs, f"{most} positive weights, num_samples={num_samples}")

    def __iter__(self) -> Iterator[int]:
        weights = np.ldexp(self.weights, -np.frexp(self.weights.max())[1])  # whose sum does not overflow
        share, draw = weights / weights.sum(), random.next_draw(self.generator)
        if self.replacement:
            blocks = (draw.choice(len(share), min(_BLOCK, self.num_samples), True, share) for _ in count())
            yield from islice((i for block in blocks for i in block.tolist()), self.num_samples)
        else:
            yield from draw.choice(len(share), self.num_samples, False, share).tolist()

    def __len__(self) -> int:
        return self.num_samples


class DistributedSampler(Sampler[int]):
    """The indices of `dataset` that one of `num_replicas` processes reads: every num_replicas-th, from `rank` on.

    All processes read equally many: the first indices repeat at the end, or with drop_last=True the last are left out.
    shuffle: in an order that is drawn from seed and the epoch of `set_epoch`, the same on all processes.
    num_replicas, rank: by default those of ampkit.distributed.
    Raises ArgumentError for a rank outside of the replicas, StateError where there is no group of processes to ask.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        if num_replicas is None or rank is None:
            from ..distributed.world import get_rank, get_world_size

            num_replicas = get_world_size() if num_replicas is None else num_replicas
            rank = get_rank() if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ArgumentError("DistributedSampler", f"a rank from 0 to {num_replicas - 1}", repr(rank))
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0
        self.num_samples = len(dataset) // num_replicas if drop_last else -(-len(dataset) // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Shuffle by another order from now on."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        length = len(self.dataset)
        order = random.generator(self.seed, self.epoch).permutation(length) if self.shuffle else np.arange(length)
        mine = np.arange(self.rank, self.total_size, self.num_replicas)  # repeated from the start where samples are few
        return iter(order[mine % length].tolist() if length else [])

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of `batch_size` indices of `sampler`; the last may be shorter; drop_last=True leaves that out.

    Raises ArgumentError for a batch_size below 1.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool):  # of indices; iterating might draw
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ArgumentError("BatchSampler", "batch_size of at least 1", repr(batch_size))
        self.sampler: Any = sampler
        self.batch_size, self.drop_last = batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        keys = iter(self.sampler)
        while (batch := list(islice(keys, self.batch_size))) and not (self.drop_last and len(batch) < self.batch_size):
            yield batch

    def __len__(self) -> int:
        full, rest = divmod(len(self.sampler), self.batch_size)
        return full + (rest > 0 and not self.drop_last)
