"""Random numbers under `vmap`: none, the same for each sample, or different ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ampkit.base.errors import StateError
from ampkit.base.scoped import ScopedVariable

from ... import random
from .array import Level, OneByOneError, is_at

_running: ScopedVariable[tuple[Level, ...]] = ScopedVariable("ampkit.vmap", ())


@contextmanager
def level(made: Level) -> Iterator[None]:
    """Within the block, in this context, the draws of streams are those of the samples of `made`."""

    def draw(like: tuple[Any, ...]) -> None:
        if made not in _running.scope().value:  # another thread's draw
            return
        if made.randomness == "error":
            cure = 'pass randomness="different" or "same"'
            raise StateError("vmap", 'no random op with randomness="error"', "one", cure)
        if made.randomness == "different" and not any(is_at(array, made) for array in like):
            raise OneByOneError("a draw")

    random.before_draw.append(draw)
    try:
        with _running.holding((*_running.scope().value, made)):
            yield
    finally:
        random.before_draw.remove(draw)


def samples(made: Level) -> Iterator[int]:
    """The numbers of the samples of `made`, for a loop; with randomness="same" each draws what the first one draws."""
    start = random.default.state()
    for sample in range(made.size):
        if made.randomness == "same":
            random.default.restore(start)
        yield sample
