"""`torch.cuda.nvtx`: ranges that a profiler of NVIDIA would show; `ampkit.profile` marks ops itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def range_push(msg: str) -> None:
    """Does nothing."""


mark = range_push


def range_pop() -> None:
    """Does nothing."""


@contextmanager
def range(msg: str) -> Iterator[None]:
    """A context that changes nothing."""
    yield
