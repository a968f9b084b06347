"""Batches of IterableDatasets, iterated in this process or by workers, each over its own share of the items."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from itertools import islice
from typing import Any, NamedTuple

from . import workers


class Batching(NamedTuple):
    """How items are batched. batch_size: None for single items. drop_last: whether to drop a shorter last batch."""

    batch_size: int | None
    drop_last: bool
    collate_fn: Callable[[Any], Any]

    def batches(self, dataset: Any) -> Iterator[Any]:
        """Iterate over lists of items, one per batch, in the order of `dataset`; over items without batch_size."""
        items = iter(dataset)
        return items if self.batch_size is None else self._lists(items, self.batch_size)

    def _lists(self, items: Iterator[Any], size: int) -> Iterator[list[Any]]:
        while (batch := list(islice(items, size))) and not (self.drop_last and len(batch) < size):
            yield batch

    def collated(self, items: Any) -> Any:
        """Collate items into a batch."""
        return self.collate_fn(items)


def dataset_state(dataset: Any) -> Any:
    """The state of a dataset that has `state_dict` and `load_state_dict`; None for others."""
    keeps = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
    return copy.deepcopy(dataset.state_dict()) if keeps else None


def with_state(dataset: Any, batching: Batching) -> Iterator[tuple[Any, Any]]:
    """Iterate over (items, state of the dataset after them) of each batch."""
    return ((items, dataset_state(dataset)) for items in batching.batches(dataset))


class Ended:
    """Sent in place of a batch at the end of a worker's share."""


_this_worker = threading.local()  # a worker's iteration and its batches


def next_batch(dataset: Any, batching: Batching, iteration: int) -> Any:
    """In a worker: the next batch of its share in the iteration of this number; or an Ended."""
    if getattr(_this_worker, "iteration", None) != iteration:
        _this_worker.iteration, _this_worker.batches = iteration, batching.batches(dataset)
    items = next(_this_worker.batches, _this_worker)
    return Ended() if items is _this_worker else batching.collated(items)


def in_turns(pools: Sequence[Executor], iteration: int, ahead: int, timeout: float) -> Iterator[Any]:
    """Batches of the workers in turn, so that their order does not depend on their speed.

    pools: of a single worker each. ahead: the number of pending batches.
    """
    ended: set[int] = set()

    def turns() -> Iterator[int]:
        while len(ended) < len(pools):
            yield from (number for number in range(len(pools)) if number not in ended)

    def submit(number: int) -> Future[tuple[int, Any]]:
        return pools[number].submit(_numbered_batch, number, iteration)

    for number, batch in workers.in_order(submit, turns(), ahead, timeout):
        if isinstance(batch, Ended):
            ended.add(number)
        else:
            yield batch


def _numbered_batch(number: int, iteration: int) -> tuple[int, Any]:
    return number, workers.run(iteration)
