"""DataLoader: batches of a dataset, in an order that can be resumed at any batch.

Names and defaults are PyTorch's. An epoch's order is a function of (draw of the random stream, epoch), so
a resumed run continues with the very next batch.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from types import GenericAlias
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ArgumentError, DTypeError
from ..core import random
from ..core.arguments import checked_constructor, shown
from ..core.saved_state import need_count, need_keys
from .collate import default_collate as default_collate
from .collate import default_convert
from .datasets import Dataset as Dataset
from .datasets import TensorDataset as TensorDataset
from .datasets import read_batch
from .loading import checks, iterable_batches, workers
from .loading.iterators import BatchIterator, DatasetKind, DirectIterator, Failure, WorkerIterator
from .samplers import BatchSampler, ForeverSampler, RandomSampler, SequentialSampler
from .sources import as_stream

_Batch = tuple[Any, Any, bool]  # with the dataset's place behind it, and whether it is the last of its epoch


class DataLoader:
    """Batches of `dataset`, each a list of tensors [batch_size, ...]: copies without gradient history.

    dataset: anything with `__len__` and `__getitem__`; `collate_fn` (`default_collate`) stacks the items. Or an
    IterableDataset, whose items come as it gives them; each worker iterates its own copy of it, which gives its share
    of the items by `get_worker_info`, and their batches come in turns. So do, without workers, the streams of Hugging
    Face's datasets, webdataset, Grain and PyTorch. A `set_epoch(epoch)` of a stream is called before each epoch.
    batch_size: None gives single items, `default_convert`ed and not stacked. shuffle: another order in each epoch.
    drop_last: leave out a last batch that is not full.
    sampler: an iterable of keys to ask for in its order, batch_sampler: one of lists of keys; each epoch iterates anew.
    generator: the random stream whose next draw fixes all orders of this loader; by default `manual_seed`'s.
    `state_dict` and `load_state_dict` carry the place within a run. Each new iteration is a new epoch, also
    after one that was left early; only the first after `load_state_dict` goes on within its epoch: of a sampler or an
    IterableDataset, which is iterated anew, that skips the batches already seen; without workers, an IterableDataset
    with a `state_dict` and `load_state_dict` of its own is sent to its place by them.
    num_workers: threads that make batches in advance, prefetch_factor (2) of them each; with 0 the calling thread makes
    them when they are asked for. With multiprocessing_context "spawn" or "forkserver" they are processes, for datasets
    whose Python would keep threads waiting for each other: dataset, collate_fn and worker_init_fn are pickled, and so
    are batches; "fork" gives threads, as None does. worker_init_fn: called with its number by each worker.
    persistent_workers: keep the processes for the epochs to come. timeout: seconds to wait for a batch. The batches,
    their order and the place in `state_dict` are the same throughout, unless a dataset draws from `manual_seed`'s
    stream itself: let such draws follow from the index, as `data.augment` does; those of an IterableDataset depend on
    the number of its workers.
    pin_memory, pin_memory_device and in_order are taken for PyTorch's sake and change no batch.
    Raises ArgumentError for an empty dataset or one without a length, a batch_size below 1, a sampler beside what it
    decides itself, anything that chooses items of an IterableDataset, num_workers below 0, prefetch_factor below 1,
    another context, and words for workers without any; StateError for a batch that is late or a process that died.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
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
        checks.check_samplers(sampler, batch_sampler, batch_size, shuffle, drop_last)
        checks.check_workers(num_workers, prefetch_factor, multiprocessing_context, persistent_workers, timeout)
        checks.check_batch_size(batch_size, drop_last)
        checks.check_functions(collate_fn=collate_fn, worker_init_fn=worker_init_fn)
        self._stream = as_stream(dataset)
        self._is_iterable = self._stream is not None
        if self._is_iterable:
            checks.check_iterable(shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler)
            checks.check_stream(dataset, self._stream, num_workers)
        elif sampler is None and batch_sampler is None:
            checks.check_length(dataset)
        else:
            checks.check_orders(sampler=sampler, batch_sampler=batch_sampler)
            checks.check_items(dataset)
        if generator is not None and not isinstance(generator, random.Stream):
            got, cure = type(generator).__name__, "give ampkit.Generator().manual_seed(seed)"
            raise ArgumentError("DataLoader", "generator to be a random stream", got, cure)
        self.shuffle, self.drop_last, self.num_workers = bool(shuffle), drop_last, num_workers
        self.dataset, self.batch_size = dataset, batch_size if batch_sampler is None else None
        own_order = sampler is None and batch_sampler is None
        self.sampler = self._own_sampler(generator) if sampler is None else sampler
        if batch_sampler is None and batch_size is not None:
            batch_sampler = BatchSampler(cast(Iterable[int], self.sampler), int(batch_size), drop_last)
        self.batch_sampler = batch_sampler
        self._own_samplers = (self.sampler, batch_sampler) if own_order else None
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        default = default_convert if batch_sampler is None else default_collate
        self.collate_fn, self.generator = default if collate_fn is None else collate_fn, generator
        self.timeout, self.worker_init_fn, self.persistent_workers = timeout, worker_init_fn, persistent_workers
        self.multiprocessing_context = multiprocessing_context
        self._idle_pools: list[Executor] = []  # processes of an epoch that has ended
        self._pool_owner = 0  # the process that they work for
        self._iterations = 0
        self.epoch, self.position = 0, 0  # of the next batch
        self._place: Any = None  # of the dataset, if it keeps one
        self._draw: tuple[int, int] | None = None
        self._resuming = False
        self._announced: int | None = None  # the length of a stream, once somebody asked for it
        self._is_made = True

    def __class_getitem__(cls, item: Any) -> Any:
        """The class itself: annotations say of what the batches are."""
        return GenericAlias(cls, item)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_is_made" in vars(self):
            raise ArgumentError("DataLoader", f"{name} as it was made with", "another one", "make another DataLoader")
        object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """Batches in an epoch. A stream that then gives more warns."""
        found = self._count()
        if self._is_iterable:
            self._announced = found
        return found

    def _count(self) -> int:
        if not self._has_own_order:
            return len(cast(Sized, self._index_sampler))
        full, rest = divmod(len(self.dataset), 1 if self.batch_size is None else self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        return self._get_iterator()

    def _get_iterator(self) -> BatchIterator:
        return WorkerIterator(self) if self.num_workers else DirectIterator(self)

    def _own_sampler(self, generator: random.Stream | None) -> Iterable[Any]:
        # For those who look at it: the order of this loader's own batches is `_order`.
        if self._is_iterable:
            return ForeverSampler()
        return RandomSampler(self.dataset, generator=generator) if self.shuffle else SequentialSampler(self.dataset)

    @property
    def _has_own_order(self) -> bool:
        # One that can be resumed at any batch, unless a subclass put another sampler into the place of its own.
        own = self._own_samplers
        return own is not None and own[0] is self.sampler and own[1] is self.batch_sampler

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Iterable[Any]:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def _dataset_kind(self) -> int:
        return DatasetKind.Iterable if self._is_iterable else DatasetKind.Map

    def batches_from_here(self) -> Iterator[Any]:
        """The batches of the next epoch, or from the place within one that `load_state_dict` went to."""
        if self.position and not self._resuming:
            self._seek(self.epoch + 1, 0)
        resumed, self._resuming = self._resuming, False
        epoch, position = self.epoch, self.position
        stream = self._is_iterable
        found = self._stream_batches(epoch, position, resumed) if stream else self._indexed_batches(epoch, position)
        for batch, place, last in found:
            position += 1
            # Counted before it is handed out: a state saved while batch k is in use goes on with k + 1.
            self._seek(*((epoch + 1, 0) if last else (epoch, position)))
            self._place = place
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The place of the next batch, the draw behind the orders (None unshuffled), batches per epoch.

        Of an IterableDataset also the number of workers, and its own place, None if it keeps none.
        """
        draw, batches = self._shuffle_draw() if self.shuffle else None, self._length()
        place = {"num_workers": self.num_workers, "dataset": self._place} if self._is_iterable else {}
        return {"draw": draw, "epoch": self.epoch, "position": self.position, "batches": batches, **place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a place that `state_dict` gave.

        Raises ArgumentError if it is no such state, or belongs to another dataset or batch size.
        """
        where = "DataLoader.load_state_dict"
        need_keys(where, state, ("draw", "epoch", "position", "batches"))
        if type(state["batches"]) not in (int, type(None)) or state["batches"] != self._length():
            got = f"a state of {state['batches']} batches per epoch"
            cure = "use the dataset and the batch_size of the run that saved it"
            raise ArgumentError(where, f"{self._length()} batches per epoch", got, cure)
        count = state.get("num_workers", self.num_workers)
        if self._is_iterable and count != self.num_workers:
            cure = "their number decides the order of the batches"
            raise ArgumentError(where, f"a state of {self.num_workers} workers", f"{count}", cure)
        epoch, position = (need_count(where, key, state[key]) for key in ("epoch", "position"))
        if state["draw"] is not None:
            draw = random.Stream()
            draw.restore(state["draw"])
            self._draw = draw.state()
        self._seek(epoch, position)
        self._place, self._resuming = state.get("dataset"), True

    def _seek(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position

    def _shuffle_draw(self) -> tuple[int, int]:
        # As late as the first use, so that a `manual_seed` after this loader was made still rules it.
        if self._draw is None:
            self._draw = (self.generator or random.default).take()
        return self._draw

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The items of an epoch in order. [n] int64."""
        if not self.shuffle:
            return np.arange(len(self.dataset))
        seed, call = self._shuffle_draw()
        # Philox has a key of two words: the second sets the shuffles apart from all other draws of the seed.
        return random.generator(seed | (call + 1) << 64, epoch).permutation(len(self.dataset))

    def _keys(self, epoch: int) -> Iterator[Any]:
        """The keys of each batch: an array or a list of them, or single keys."""
        if not self._has_own_order:
            return iter(self._index_sampler)
        order, size = self._order(epoch), self.batch_size
        if size is None:
            return iter(order.tolist())
        return (order[i * size : (i + 1) * size] for i in range(self._count()))

    def _length(self) -> int | None:
        try:
            return self._count()
        except (TypeError, NotImplementedError):  # a sampler or a stream without a length
            return None

    def _indexed_batches(self, epoch: int, position: int) -> Iterator[_Batch]:
        """The batches of an epoch of a dataset with indices."""
        keys = _with_last(islice(self._keys(epoch), position, None))
        asked = ((epoch, key, not self._auto_collation, last) for key, last in keys)
        if not self.num_workers:
            return map(partial(_fetch_or_fail, self.dataset, self.collate_fn), asked)

        def batches(pools: list[Executor]) -> Iterator[_Batch]:
            return workers.in_order(
                lambda key: pools[0].submit(workers.run, key), asked, self._ahead, self.timeout, _failed
            )

        return self._from_workers(batches)

    def _stream_batches(self, epoch: int, position: int, resumed: bool) -> Iterator[_Batch]:
        """The batches of an epoch of an IterableDataset."""
        stream: Any = self._stream
        if hasattr(stream, "set_epoch"):
            stream.set_epoch(epoch)
        batching = iterable_batches.Batching(self.batch_size, self.drop_last, self.collate_fn)
        if self.num_workers:
            self._iterations += 1
            turns = partial(
                iterable_batches.in_turns, iteration=self._iterations, ahead=self._ahead, timeout=self.timeout
            )
            batches = islice(self._from_workers(turns), position, None)
            yield from ((batch, None, last) for batch, last in _with_last(batches))
            return
        if resumed and self._place is not None:
            stream.load_state_dict(copy.deepcopy(self._place))
            position = 0
        placed = islice(iterable_batches.with_state(stream, batching), position, None)
        for (items, place), last in _with_last(placed):
            yield batching.collated(items), iterable_batches.dataset_state(stream) if last else place, last

    @property
    def _ahead(self) -> int:
        return self.num_workers * (self.prefetch_factor or 1)

    def _from_workers(self, batches: Callable[[list[Executor]], Iterator[Any]]) -> Iterator[Any]:
        """Batches made by workers: all in one pool, those of an IterableDataset each in a pool of its own."""
        kept = self._idle_pools if self._pool_owner == os.getpid() else []  # a forked child cannot use its parent's
        pools, self._idle_pools = kept or self._pools(), []  # a second iteration at the same time has others
        failed = True
        try:
            yield from batches(pools)
            failed = False
        except GeneratorExit:  # left early
            failed = False
            raise
        finally:
            if not failed and self.persistent_workers and workers.start_method(self.multiprocessing_context):
                self._idle_pools, self._pool_owner = pools, os.getpid()
            else:
                for pool in pools:
                    pool.shutdown(wait=True, cancel_futures=True)

    def _pools(self) -> list[Executor]:
        batching = iterable_batches.Batching(self.batch_size, self.drop_last, self.collate_fn)
        make, more = (iterable_batches.next_batch, (batching,)) if self._is_iterable else (_fetch, (self.collate_fn,))
        seed = (self.generator or random.default).seed
        work = workers.Work(make, self.dataset, more, self.num_workers, self.worker_init_fn, seed)
        numbers = list(range(self.num_workers))
        return [self._pool(work, part) for part in ([[n] for n in numbers] if self._is_iterable else [numbers])]

    def _pool(self, work: workers.Work, numbers: list[int]) -> Executor:
        if workers.start_method(self.multiprocessing_context):
            return workers.on_processes(work, numbers, self.multiprocessing_context)
        own = copy.copy(work.dataset) if self._is_iterable else work.dataset  # what a worker changes is its own share
        return workers.on_threads(work._replace(dataset=own), numbers)


# what decides the batches, which PyTorch's refuses to change as well
_FIXED = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})


def _fetch(dataset: Any, collate_fn: Any, asked: tuple[int, Any, bool, bool]) -> _Batch:
    """A batch, or the item of a single key; with whether it is the last of its epoch."""
    epoch, keys, single, last = asked
    if single:
        return collate_fn(dataset[_plain(keys)]), None, last
    if not isinstance(keys, Iterable):
        raise DTypeError("DataLoader", "batches of keys from batch_sampler", shown(keys))
    if collate_fn is default_collate and (found := read_batch(dataset, np.asarray(keys), epoch)) is not None:
        return found, None, last
    plain = [_plain(key) for key in keys]
    several = getattr(dataset, "__getitems__", None)  # as in PyTorch: of data sets that read several items at once
    return collate_fn(several(plain) if several else [dataset[key] for key in plain]), None, last


def _fetch_or_fail(dataset: Any, collate_fn: Any, asked: tuple[int, Any, bool, bool]) -> _Batch:
    try:
        return _fetch(dataset, collate_fn, asked)
    except Exception as error:
        return _failed(asked, error)


def _failed(asked: tuple[int, Any, bool, bool], error: Exception) -> _Batch:
    # The iteration goes on behind the batch that failed, as PyTorch's.
    return Failure(error), None, asked[-1]


def _with_last(batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Each with whether it is the last."""
    batch = next(batches, _END)
    while batch is not _END:
        after = next(batches, _END)
        yield batch, after is _END
        batch = after


_END = object()  # None may be a batch


def _plain(key: Any) -> Any:
    return key.__index__() if hasattr(key, "__index__") else key


checked_constructor(DataLoader)
