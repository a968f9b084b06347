"""Peak memory that Python and NumPy allocate in a block."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """Assert that the block never holds more than `limit` newly allocated bytes."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak} bytes at the peak, limit {limit}"
