"""`torch.random` beside ampkit's own names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import urandom
from typing import Any

from ...core.random import get_rng_state, initial_seed, manual_seed, set_rng_state

__all__ = ["fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, **ignored: Any) -> Iterator[None]:
    """Restore the random state after the block, which is one for all devices."""
    state = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(state)


def seed() -> int:
    """Seed the random numbers by the system's entropy; returns the seed."""
    found = int.from_bytes(urandom(8)) >> 1
    manual_seed(found)
    return found
