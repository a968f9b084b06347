"""DataLoader: batches of a dataset, in an order that can be sought.

Names and defaults are PyTorch's. An epoch's order is a function of (draw of the random stream, epoch), so
a run that was cut off goes on with the very next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import random
from ..core.errors import ArgumentError
from . import workers
from .collate import default_collate as default_collate
from .datasets import Dataset as Dataset
from .datasets import TensorDataset as TensorDataset
from .datasets import rows
from .samplers import BatchSampler

_Asked = tuple[int, Any, bool]  # epoch, keys, whether it is the last batch


class DataLoader:
    """Batches of `dataset`, each a list of tensors [batch_size, ...]; a copy, off the tape.

    dataset: anything with `__len__` and `__getitem__`; `collate_fn` (`default_collate`) stacks the items.
    shuffle: another order in each epoch. drop_last: leave out a last batch that is not full.
    sampler: an iterable of keys to ask for in its order, batch_sampler: one of lists of keys; each epoch iterates anew.
    generator: the random stream whose next draw fixes all orders of this loader; by default `manual_seed`'s.
    `state_dict` and `load_state_dict` carry the place within a run. Each new iteration is a new epoch, also
    after one that was left early; only the first after `load_state_dict` goes on within its epoch: of a sampler, which
    is iterated anew, that skips the batches already seen.
    num_workers: threads that make batches in advance, prefetch_factor (2) of them each; with 0 the calling thread makes
    them when they are asked for. With multiprocessing_context "spawn" or "forkserver" they are processes, for datasets
    whose Python would keep threads waiting for each other: dataset, collate_fn and worker_init_fn, which each process
    calls with its number, are pickled, and so are batches. persistent_workers: keep the processes for the epochs to
    come. timeout: seconds to wait for a batch. The batches, their order and the place in `state_dict` are the same
    throughout, unless a dataset draws from `manual_seed`'s stream itself: let such draws follow from the index, as
    `data.augment` does.
    pin_memory, pin_memory_device and in_order are taken for PyTorch's sake and change no batch.
    Raises ArgumentError for an empty dataset or one without a length, a batch_size below 1, a sampler beside what it
    decides itself, num_workers below 0, prefetch_factor below 1, another context, and words for workers without any;
    StateError for a batch that is late or a process that died.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: random.Stream | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ):
        _check_samplers(sampler, batch_sampler, batch_size, shuffle, drop_last)
        _check_workers(num_workers, prefetch_factor, multiprocessing_context)
        if sampler is None and batch_sampler is None:
            _check_sizes(dataset, batch_size, drop_last)
        elif batch_sampler is None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        if generator is not None and not isinstance(generator, random.Stream):
            got, cure = type(generator).__name__, "give ampkit.Generator().manual_seed(seed)"
            raise ArgumentError("DataLoader", "generator to be a random stream", got, cure)
        self.dataset, self.batch_size, self.sampler, self.batch_sampler = dataset, batch_size, sampler, batch_sampler
        self.shuffle, self.drop_last, self.num_workers = bool(shuffle), drop_last, num_workers
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.collate_fn, self.generator = collate_fn, generator
        self.timeout, self.worker_init_fn, self.persistent_workers = timeout, worker_init_fn, persistent_workers
        self.multiprocessing_context, self._pool = multiprocessing_context, None
        self.epoch, self.position = 0, 0  # of the next batch
        self._draw: tuple[int, int] | None = None
        self._resuming = False

    def __len__(self) -> int:
        """Batches in an epoch."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        if self.position and not self._resuming:
            self._seek(self.epoch + 1, 0)
        self._resuming = False
        epoch, position = self.epoch, self.position
        batches = _with_last(islice(self._batches(epoch), position, None))
        for batch, last in self._fetched((epoch, *batch) for batch in batches):
            position += 1
            # Counted before it is handed out: a state saved while batch k is in use goes on with k + 1.
            self._seek(*((epoch + 1, 0) if last else (epoch, position)))
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The place of the next batch, the draw behind the orders (None unshuffled), batches per epoch."""
        draw, batches = self._drawn() if self.shuffle else None, self._length()
        return {"draw": draw, "epoch": self.epoch, "position": self.position, "batches": batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a place that `state_dict` gave.

        Raises ArgumentError if it is no such state, or belongs to another dataset or batch size.
        """
        missing = [key for key in ("draw", "epoch", "position", "batches") if key not in state]
        if missing:
            raise ArgumentError("DataLoader.load_state_dict", f"the keys {missing}", f"only {sorted(state)}")
        if state["batches"] != self._length():
            got = f"a state of {state['batches']} batches per epoch"
            cure = "use the dataset and the batch_size of the run that saved it"
            raise ArgumentError("DataLoader.load_state_dict", f"{self._length()} batches per epoch", got, cure)
        if state["draw"] is not None:
            self._draw = (int(state["draw"][0]), int(state["draw"][1]))
        self._seek(int(state["epoch"]), int(state["position"]))
        self._resuming = True

    def _seek(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position

    def _drawn(self) -> tuple[int, int]:
        # As late as the first use, so that a `manual_seed` after this loader was made still rules it.
        if self._draw is None:
            self._draw = (self.generator or random.default).take()
        return self._draw

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The items of an epoch in order. [n] int64."""
        if not self.shuffle:
            return np.arange(len(self.dataset))
        seed, call = self._drawn()
        # Philox has a key of two words: the second sets the shuffles apart from all other draws of the seed.
        return random.generator(seed | (call + 1) << 64, epoch).permutation(len(self.dataset))

    def _batches(self, epoch: int) -> Iterator[Any]:
        if self.batch_sampler is not None:
            return iter(self.batch_sampler)
        order, size = self._order(epoch), self.batch_size
        return (order[i * size : (i + 1) * size] for i in range(len(self)))

    def _length(self) -> int | None:
        try:
            return len(self)
        except TypeError:  # a sampler without a length
            return None

    def _fetched(self, batches: Iterator[_Asked]) -> Iterator[tuple[Any, bool]]:
        given, ahead = (self.dataset, self.collate_fn), self.num_workers * (self.prefetch_factor or 1)
        if not self.num_workers:
            return map(partial(_fetch, *given), batches)
        if self.multiprocessing_context is None:
            return workers.on_threads(partial(_fetch, *given), batches, self.num_workers, ahead, self.timeout)
        return self._from_processes(given, batches, ahead)

    def _from_processes(self, given: Any, batches: Iterator[_Asked], ahead: int) -> Iterator[tuple[Any, bool]]:
        pool, self._pool = self._pool, None  # a second iteration at the same time has processes of its own
        if pool is None:
            context = self.multiprocessing_context
            pool = workers.processes(_fetch, given, self.num_workers, context, self.worker_init_fn)
        whole = False
        try:
            yield from workers.in_order(partial(pool.submit, workers.made), batches, ahead, self.timeout)
            whole = True
        except GeneratorExit:  # left early
            whole = True
            raise
        finally:
            if whole and self.persistent_workers:
                self._pool = pool
            else:
                pool.shutdown(wait=True, cancel_futures=True)


def _fetch(dataset: Any, collate_fn: Any, asked: _Asked) -> tuple[Any, bool]:
    """A batch, and whether it is the last of its epoch."""
    epoch, keys, last = asked
    if collate_fn is None and (found := rows(dataset, np.asarray(keys), epoch)) is not None:
        return found, last
    return (collate_fn or default_collate)([dataset[_plain(key)] for key in keys]), last


def _with_last(batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Each with whether it is the last."""
    batch = next(batches, None)
    while batch is not None:
        after = next(batches, None)
        yield batch, after is None
        batch = after


def _plain(key: Any) -> Any:
    return key.__index__() if hasattr(key, "__index__") else key


def _check_samplers(sampler: Any, batch_sampler: Any, batch_size: Any, shuffle: Any, drop_last: bool) -> None:
    if sampler is not None and shuffle:
        raise ArgumentError("DataLoader", "a sampler or shuffle", "both", "RandomSampler shuffles")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        got = f"batch_size={batch_size}, shuffle={shuffle}, sampler={sampler}, drop_last={drop_last} beside it"
        raise ArgumentError("DataLoader", "a batch_sampler alone, which decides the batches", got)


def _check_workers(count: Any, factor: Any, context: Any) -> None:
    if not isinstance(count, int | np.integer) or count < 0:
        raise ArgumentError("DataLoader", "num_workers from 0", repr(count))
    if factor is not None and (not isinstance(factor, int) or factor < 1):
        raise ArgumentError("DataLoader", "prefetch_factor from 1", repr(factor))
    if factor is not None and not count:
        raise ArgumentError("DataLoader", "num_workers from 1 for a prefetch_factor", f"{count}")
    if context is not None and not count:
        raise ArgumentError("DataLoader", "num_workers from 1 for a multiprocessing_context", f"{count}")
    workers.check_context(context)


def _check_sizes(dataset: Any, batch_size: Any, drop_last: bool) -> None:
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ArgumentError("DataLoader", "batch_size of at least 1", repr(batch_size))
    length = _length(dataset)
    if length == 0:
        raise ArgumentError("DataLoader", "a dataset with items", "an empty one")
    if drop_last and length < batch_size:
        got = f"{length} items, less than batch_size={batch_size}"
        raise ArgumentError("DataLoader", "one full batch when drop_last=True", got, "lower batch_size")


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        got = type(dataset).__name__
        raise ArgumentError("DataLoader", "a dataset with __len__ and __getitem__", got) from None
