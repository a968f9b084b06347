"""Checks of a DataLoader's arguments. Each raises ArgumentError."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.errors import ArgumentError, DTypeError
from ...core.arguments import shown
from .workers import start_method

_MOST_WORKERS = 1024


def check_samplers(sampler: Any, batch_sampler: Any, batch_size: Any, shuffle: Any, drop_last: bool) -> None:
    """Refuse arguments that decide the same thing."""
    if sampler is not None and shuffle:
        raise ArgumentError("DataLoader", "a sampler or shuffle", "both", "RandomSampler shuffles")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        got = f"batch_size={batch_size}, shuffle={shuffle}, sampler={sampler}, drop_last={drop_last} beside it"
        raise ArgumentError("DataLoader", "a batch_sampler alone, which decides the batches", got)


def check_iterable(**given: Any) -> None:
    """Refuse arguments that choose items of an IterableDataset."""
    for name, value in given.items():
        if value is not None and value is not False:
            cure = "it decides itself which items come, and in which order"
            raise ArgumentError("DataLoader", f"no {name} for an IterableDataset", f"{value}", cure)


def check_stream(dataset: Any, stream: Any, num_workers: int) -> None:
    """Refuse workers for a stream of another library, which knows nothing of them: each would read all of it."""
    if num_workers and stream is not dataset:
        cure = "read ahead in the library: grain's mp_prefetch, say"
        raise ArgumentError("DataLoader", f"num_workers=0 for {type(dataset).__name__}", f"{num_workers}", cure)


def check_workers(count: Any, factor: Any, context: Any, persistent: bool, timeout: Any) -> None:
    """Refuse wrong numbers and kinds of workers, and arguments for workers without any."""
    if not isinstance(count, int | np.integer) or not 0 <= count <= _MOST_WORKERS:
        raise ArgumentError("DataLoader", f"num_workers from 0 to {_MOST_WORKERS}", repr(count))
    if factor is not None and (not isinstance(factor, int) or factor < 1):
        raise ArgumentError("DataLoader", "prefetch_factor from 1", repr(factor))
    if timeout < 0:
        raise ArgumentError("DataLoader", "a timeout from 0 seconds", repr(timeout))
    given = {"prefetch_factor": factor, "multiprocessing_context": context, "persistent_workers": persistent or None}
    for name, value in given.items():
        if value is not None and not count:
            raise ArgumentError("DataLoader", f"num_workers from 1 for a {name}", f"{count}")
    start_method(context)


def check_batch_size(batch_size: Any, drop_last: bool) -> None:
    """Refuse a batch_size that is no positive integer."""
    if batch_size is None and drop_last:
        raise ArgumentError("DataLoader", "a batch_size for drop_last", "None, which gives single items")
    if batch_size is not None and (not isinstance(batch_size, int | np.integer) or batch_size < 1):
        raise ArgumentError("DataLoader", "batch_size of at least 1", repr(batch_size))


def check_functions(**given: Any) -> None:
    """Refuse functions that cannot be called."""
    for name, function in given.items():
        if function is not None and not callable(function):
            raise DTypeError("DataLoader", f"{name} as a function", shown(function))


def check_orders(**given: Any) -> None:
    """Refuse samplers that cannot be iterated."""
    for name, order in given.items():
        if order is not None and not (hasattr(order, "__iter__") or hasattr(order, "__getitem__")):
            raise DTypeError("DataLoader", f"{name} as an iterable", shown(order))


def check_items(dataset: Any) -> None:
    """Refuse a dataset whose items have no index."""
    if not hasattr(dataset, "__getitem__"):
        cure = "a dataset that is only iterated is an IterableDataset"
        raise DTypeError("DataLoader", "a dataset with __getitem__", shown(dataset), cure)


def check_length(dataset: Any) -> None:
    """Refuse a dataset without a length, or without items."""
    try:
        found = len(dataset)
    except (TypeError, NotImplementedError):
        got, cure = type(dataset).__name__, "a dataset that is only iterated is an IterableDataset"
        raise ArgumentError("DataLoader", "a dataset with __len__ and __getitem__", got, cure) from None
    if found == 0:
        raise ArgumentError("DataLoader", "a dataset with items", "an empty one")
