"""`torch.random`, and random states as PyTorch has them: tensors of bytes, here of a seed and the next draw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...base.errors import ArgumentError
from ...core import random
from ...core.random import initial_seed, manual_seed, seed
from ...core.tensor import Tensor

__all__ = [
    "Generator", "default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed",
    "set_rng_state",
]  # fmt: skip

default_generator = random.default


def _as_tensor(state: tuple[int, int]) -> Tensor:
    return Tensor(np.array(state, "<u8").view(np.uint8))


def _as_pair(state: Any) -> Any:
    if not isinstance(state, Tensor):
        return state  # a pair, as ampkit has them
    held = state.numpy(force=True).reshape(-1)
    if held.dtype != np.uint8 or held.size != 16:
        got, cure = f"{held.size} of {held.dtype}", "states of PyTorch are of another generator: manual_seed(seed)"
        raise ArgumentError("set_rng_state", "a state of get_rng_state, 16 bytes", got, cure)
    return tuple(np.ascontiguousarray(held).view("<u8").tolist())


def get_rng_state() -> Tensor:
    """The state of the random numbers, which are the same on all devices. -> [16] uint8 on the CPU."""
    return _as_tensor(random.get_rng_state())


def set_rng_state(new_state: Any) -> None:
    """Set a state of `get_rng_state`, or a pair of ampkit's. Raises ArgumentError for anything else."""
    random.set_rng_state(_as_pair(new_state))


class Generator(random.Generator):
    """`ampkit.Generator`, whose states are tensors."""

    __slots__ = ()

    def get_state(self) -> Any:
        """[16] uint8."""
        return _as_tensor(self.state())

    def set_state(self, new_state: Any) -> Any:
        """Set a state of `get_state`; returns itself. Raises ArgumentError for anything else."""
        self.restore(_as_pair(new_state))
        return self


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, **ignored: Any) -> Iterator[None]:
    """Restore the random state after the block, which is one for all devices."""
    state = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(state)
