"""Random numbers: one counter-based stream, Philox4x64-10 (Salmon et al. 2011, SC'11), with random access.

A draw takes the next call number of the stream; (seed, call) alone fixes its values, on any device and in any order of
execution. So a stream is two integers, and to resume or to recompute is to set them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..base.errors import ArgumentError


class Stream:
    """A seed and the number of the next call."""

    __slots__ = ("call", "seed")

    def __init__(self, seed: int = 0):
        self.seed, self.call = _seed(seed), 0

    def take(self) -> tuple[int, int]:
        """The (seed, call) of the next draw."""
        self.call += 1
        return self.seed, self.call - 1

    def state(self) -> tuple[int, int]:
        """What `restore` needs to draw the same numbers again."""
        return self.seed, self.call

    def restore(self, state: tuple[int, int]) -> None:
        """Go back, or on, to a state. Raises ArgumentError, with nothing changed, for anything else."""
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            raise ArgumentError(
                "set_rng_state", "a random state, a pair (seed, next call) of integers", repr(state)[:60]
            )
        seed = _seed(state[0])
        if type(state[1]) is not int or not 0 <= state[1] < 2**64:
            raise ArgumentError(
                "set_rng_state", "a random state whose next call is an integer from 0 to 2**64 - 1", repr(state[1])
            )
        self.seed, self.call = seed, state[1]


class Generator(Stream):
    """A stream of one's own, by PyTorch's name: `Generator().manual_seed(0)`; the same numbers on any device."""

    __slots__ = ("device",)

    def __init__(self, device: str = "cpu"):
        super().__init__()
        self.device = device

    def manual_seed(self, seed: int) -> Generator:
        """Start anew under `seed`. Raises ArgumentError out of [0, 2^64)."""
        self.restore((seed, 0))
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self.seed

    def get_state(self) -> tuple[int, int]:
        """The state: (seed, next call)."""
        return self.state()

    def set_state(self, new_state: tuple[int, int]) -> None:
        """Go back, or on, to a state."""
        self.restore(new_state)


def philox(seed: int, call: int) -> np.random.Philox:
    """Philox4x64-10 at draw `call` under `seed`: 2^192 blocks of four 64-bit words, shared with no other call."""
    return np.random.Philox(key=seed, counter=call << 192)


def generator(seed: int, call: int) -> np.random.Generator:
    """NumPy's distributions over draw `call` under `seed`."""
    return np.random.Generator(philox(seed, call))


def keep_mask(
    seed: int, call: int, p: float, shape: tuple[int, ...], start: int = 0
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """True for the elements of `shape` that dropout with probability `p` keeps in draw `call`; a 16-bit word decides.

    An element is kept where its word, in the order of the stream from word `start` on, is at least round(p * 65536).
    """
    before = start % 16
    found = random_bits(seed, call, before + math.prod(shape), start - before)[before:]
    return np.asarray(found >= round(p * 65536)).reshape(shape)


def random_bits(seed: int, call: int, count: int, start: int = 0) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Words `start` to `start + count` of draw `call` under `seed`, of 16 bits; start: a multiple of 16, a block."""
    stream = philox(seed, call).advance(start // 16)
    return stream.random_raw(-(-count // 4)).astype("<u8", copy=False).view("<u2")[:count]


def _seed(seed: Any) -> int:
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ArgumentError("manual_seed", "an integer from 0 to 2**64 - 1", repr(seed))
    return seed


default = Stream()


def manual_seed(seed: int) -> Stream:
    """Start the default stream anew: the same seed gives the same numbers. Raises ArgumentError out of [0, 2^64)."""
    default.restore((seed, 0))
    return default


def initial_seed() -> int:
    """The seed of the default stream."""
    return default.seed


def get_rng_state() -> tuple[int, int]:
    """The state of the default stream: (seed, next call)."""
    return default.state()


def set_rng_state(new_state: tuple[int, int]) -> None:
    """Set the default stream to a state that `get_rng_state` gave."""
    default.restore(new_state)
