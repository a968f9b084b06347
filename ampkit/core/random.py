"""Random numbers: the counter-based generator Philox4x64-10 (Salmon et al. 2011, SC'11).

Each draw takes the next call number of a stream. (seed, call) determines its values, on any device and in any order of
execution. So the state of a stream is two integers, and resuming or recomputing sets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import urandom
from typing import Any

import numpy as np

from ..base.errors import ArgumentError, StateError
from ..base.scoped import ScopedVariable

# Called before a draw with the arrays of Stream.take; may raise, to refuse it.
before_draw: list[Callable[[tuple[Any, ...]], None]] = []


class Stream:
    """A stream of random numbers: a seed in [0, 2^64) and the number of the next draw, `call`."""

    __slots__ = ("call", "seed")

    def __init__(self, seed: int = 0):
        self.seed, self.call = _seed(seed), 0

    def take(self, *like: Any) -> tuple[int, int]:
        """Return the (seed, call) of the next draw and advance the stream by one.

        like: the arrays for which an op draws as many numbers as they have elements: under `vmap`, of all samples.
        """
        only = _splits.scope().value
        if type(only) is OnlyStream and only is not self:
            cure = "leave out generator="
            raise StateError("a draw within a microbatch", "the default random stream", "another generator", cure)
        for notify in before_draw:
            notify(like)
        self.call += 1
        return self.seed, self.call - 1

    def state(self) -> tuple[int, int]:
        """The state (seed, next call), from which `restore` repeats the draws."""
        return self.seed, self.call

    def restore(self, state: tuple[int, int]) -> None:
        """Set the state to a pair (seed, next call). Raises ArgumentError, with nothing changed, for anything else."""
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            needs = "a random state, a pair (seed, next call) of integers"
            raise ArgumentError("set_rng_state", needs, repr(state)[:60])
        seed = _seed(state[0])
        if type(state[1]) is not int or not 0 <= state[1] < 2**64:
            needs = "a random state whose next call is an integer from 0 to 2**64 - 1"
            raise ArgumentError("set_rng_state", needs, repr(state[1]))
        self.seed, self.call = seed, state[1]


class Generator(Stream):
    """A random stream apart from the default one, as in PyTorch: `Generator().manual_seed(0)`.

    It draws the same numbers for any `device`.
    """

    __slots__ = ("device",)

    def __init__(self, device: str = "cpu"):
        super().__init__()
        self.device = device

    def manual_seed(self, seed: int) -> Generator:
        """Set the seed and start from the first draw. Raises ArgumentError for a seed outside [0, 2^64)."""
        self.restore((seed, 0))
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self.seed

    def get_state(self) -> tuple[int, int]:
        """The state: a tuple (seed, next call)."""
        return self.state()

    def set_state(self, new_state: tuple[int, int]) -> None:
        """Set the state that `get_state` returned. Raises ArgumentError for anything else."""
        self.restore(new_state)


def philox(seed: int, call: int) -> np.random.Philox:
    """NumPy's Philox4x64-10 at draw `call` of `seed`: 2^192 blocks of four 64-bit words that no other draw uses."""
    return np.random.Philox(key=seed, counter=call << 192)


def generator(seed: int, call: int) -> np.random.Generator:
    """A NumPy Generator over the random bits of draw `call` of `seed`."""
    return np.random.Generator(philox(seed, call))


def keep_mask(
    seed: int, call: int, p: float, shape: tuple[int, ...], start: int = 0
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The mask of dropout with probability `p` in draw `call`: bool of `shape`, True where the element is kept.

    Each element has one 16-bit word of the draw, in order from word `start`; it is kept where the word is at least
    round(p * 65536).
    """
    before = start % 16
    found = random_bits(seed, call, before + math.prod(shape), start - before)[before:]
    return np.asarray(found >= round(p * 65536)).reshape(shape)


def random_bits(seed: int, call: int, count: int, start: int = 0) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """`count` 16-bit words of draw `call` of `seed`, from word `start` (a multiple of 16) on. -> [count] uint16."""
    stream = philox(seed, call).advance(start // 16)
    return stream.random_raw(-(-count // 4)).astype("<u8", copy=False).view("<u2")[:count]


def random_words(seed: int, call: int, count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """`count` 32-bit words of draw `call` of `seed`. -> [count] uint32."""
    return philox(seed, call).random_raw(-(-count // 2)).astype("<u8", copy=False).view("<u4")[:count]


def _seed(seed: Any) -> int:
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ArgumentError("manual_seed", "an integer from 0 to 2**64 - 1", repr(seed))
    return seed


_splits: ScopedVariable[Stream | None] = ScopedVariable("ampkit.random", None)


class _Default(Stream):
    """The default stream, or within `drawing_from` another one."""

    __slots__ = ()

    def take(self, *like: Any) -> tuple[int, int]:
        found = _splits.scope().value
        return super().take(*like) if found is None else found.take(*like)

    def state(self) -> tuple[int, int]:
        found = _splits.scope().value
        return super().state() if found is None else found.state()

    def restore(self, state: tuple[int, int]) -> None:
        found = _splits.scope().value
        super().restore(state) if found is None else found.restore(state)


default = _Default()


def split() -> Stream:
    """A stream apart from the default one, which a draw of that decides."""
    return Stream(int(philox(*default.take()).random_raw()))


class OnlyStream(Stream):
    """A stream beside which, within `drawing_from`, no other may draw: threads would share it in any order."""

    __slots__ = ()


def split_into(count: int) -> list[Stream]:
    """`count` streams apart from the default one and each other, which one draw of that decides; see OnlyStream."""
    return [OnlyStream(int(word)) for word in philox(*default.take()).random_raw(count)]


def apart(number: int, state: tuple[int, int]) -> Stream:
    """What stands for the default stream, of this `state`, while part `number` of something is computed by itself.

    It has other numbers for each part, and goes on from the same draw.
    """
    kind = OnlyStream if type(_splits.scope().value) is OnlyStream else Stream
    made = kind((state[0] + (number << 20)) % 2**64)  # as for ranks, any other seed gives independent draws
    made.call = state[1]
    return made


def drawing_from(stream: Stream) -> AbstractContextManager[None]:
    """A context in which the default stream is `stream`, in this thread."""
    return _splits.holding(stream)


def next_draw(stream: Stream | None = None, *like: Any) -> np.random.Generator:
    """A NumPy Generator over the random bits of the next draw of `stream`, which without one is the default stream.

    like: as in `Stream.take`.
    """
    return generator(*(stream or default).take(*like))


def manual_seed(seed: int) -> Stream:
    """Seed the default stream and return it. Raises ArgumentError for a seed outside [0, 2^64).

    A process that seeds nothing has the seed 0: unlike in PyTorch, it draws the same numbers each time it is run. Other
    numbers each time: `ampkit.seed()`.
    """
    default.restore((seed, 0))
    return default


def seed() -> int:
    """Seed the default stream from the system's entropy, for other numbers each time; returns the seed."""
    found = int.from_bytes(urandom(8)) >> 1  # a signed integer of 64 bits holds it
    manual_seed(found)
    return found


def initial_seed() -> int:
    """The seed of the default stream: 0 in a process that has set none."""
    return default.seed


def get_rng_state() -> tuple[int, int]:
    """The state of the default stream: (seed, next call)."""
    return default.state()


def set_rng_state(new_state: tuple[int, int]) -> None:
    """Set the default stream to a state that `get_rng_state` returned. Raises ArgumentError for anything else."""
    default.restore(new_state)
