"""Streams: batches of datasets that can only be iterated, drawn here or by workers, each of its own share."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from itertools import islice
from typing import Any, NamedTuple

from . import workers
from .collate import default_collate, default_convert


class Cut(NamedTuple):
    """How a stream becomes batches: batch_size, None for single items; drop_last, and what makes a batch of items."""

    batch_size: int | None
    drop_last: bool
    collate_fn: Callable[[Any], Any] | None

    def batches(self, dataset: Any) -> Iterator[Any]:
        """The items of each batch, as `dataset` gives them."""
        items = iter(dataset)
        return items if self.batch_size is None else self._full(items, self.batch_size)

    def _full(self, items: Iterator[Any], size: int) -> Iterator[list[Any]]:
        while (batch := list(islice(items, size))) and not (self.drop_last and len(batch) < size):
            yield batch

    def collated(self, items: Any) -> Any:
        """A batch."""
        if self.collate_fn is not None:
            return self.collate_fn(items)
        return default_convert(items) if self.batch_size is None else default_collate(items)


def place(dataset: Any) -> Any:
    """Where a dataset is that keeps its own place, by `state_dict` and `load_state_dict`; None for others."""
    keeps = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
    return copy.deepcopy(dataset.state_dict()) if keeps else None


def placed(dataset: Any, cut: Cut) -> Iterator[tuple[Any, Any]]:
    """(the items, the place behind them) of each batch."""
    return ((items, place(dataset)) for items in cut.batches(dataset))


class Ended:
    """In the place of a batch: the share of a worker is at its end."""


_own = threading.local()  # a worker's iteration and its batches


def next_batch(dataset: Any, cut: Cut, iteration: int) -> Any:
    """In a worker: the next batch of its share, in an iteration that has a number of its own; or an Ended."""
    if getattr(_own, "iteration", None) != iteration:
        _own.iteration, _own.batches = iteration, cut.batches(dataset)
    items = next(_own.batches, _own)
    return Ended() if items is _own else cut.collated(items)


def in_turns(pools: Sequence[Executor], iteration: int, ahead: int, timeout: float) -> Iterator[Any]:
    """Batches of each worker in turn, as long as it has any: in the same order whoever is the quicker.

    pools: of a single worker each. ahead: how many batches are under way.
    """
    ended: set[int] = set()

    def turns() -> Iterator[int]:
        while len(ended) < len(pools):
            yield from (number for number in range(len(pools)) if number not in ended)

    def submit(number: int) -> Future[tuple[int, Any]]:
        return pools[number].submit(_of, number, iteration)

    for number, batch in workers.in_order(submit, turns(), ahead, timeout):
        if isinstance(batch, Ended):
            ended.add(number)
        else:
            yield batch


def _of(number: int, iteration: int) -> tuple[int, Any]:
    return number, workers.made(iteration)
