"""Prefetch: batches on their device before they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .. import backends
from ..core.nested import tensors_in, with_tensors
from ..core.tensor import Tensor


def prefetch(batches: Iterable[Any], device: str | None = None) -> Iterator[Any]:
    """The batches on `device`, each brought there while the one before it is worked on.

    batches: tensors of the CPU, in tuples, lists or dicts or alone, as a DataLoader gives them. On a GPU they are
    copied through pinned memory, on a stream of their own, and the host waits for none of it; on a CPU they come as
    they are. Raises DeviceError for a device that this machine does not have.
    """
    there = backends.get(device)
    return _ahead(batches, there) if there.name != "cpu" else iter(batches)


def _ahead(batches: Iterable[Any], there: Any) -> Iterator[Any]:
    coming = None
    for batch in batches:
        host = [backends.backend_of(t.array).to_numpy(t.array) for t in tensors_in(batch)]
        following = batch, there.staging.bring(host)
        if coming is not None:
            yield _arrived(*coming)
        coming = following
    if coming is not None:
        yield _arrived(*coming)


def _arrived(batch: Any, ready: Any) -> Any:
    return with_tensors(batch, map(Tensor, ready()))
