"""Random numbers under `vmap`: none, the same for each sample, or different ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ampkit.base.errors import StateError
from ampkit.base.scoped import ScopedVariable

from ... import random
from ...tensor import Tensor
from .array import Level, OneByOneError, changes_unbatched, is_at
from .boundary import enter, leave

_running: ScopedVariable[tuple[Level, ...]] = ScopedVariable("ampkit.vmap", ())
_ALL = object()  # in place of the arrays of a draw that is one of all samples


@contextmanager
def level(made: Level) -> Iterator[None]:
    """Within the block, in this context, the draws of streams are those of the samples of `made`."""

    def draw(like: tuple[Any, ...]) -> None:
        if made not in _running.scope().value:  # another thread's draw
            return
        if made.randomness == "error":
            raise _refused()
        if made.randomness == "different" and not any(array is _ALL or is_at(array, made) for array in like):
            raise OneByOneError("a draw")

    random.before_draw.append(draw)
    try:
        with _running.holding((*_running.scope().value, made)):
            yield
    finally:
        random.before_draw.remove(draw)


def _refused() -> StateError:
    return StateError("vmap", 'no random op with randomness="error"', "one", 'pass randomness="different" or "same"')


def of_samples(draw: Callable[..., Tensor], stream: random.Stream | None = None) -> Tensor:
    """draw(generator, sizes): a tensor whose first axes are `sizes`, those of the samples that draw different numbers.

    Each sample is shown its own part of the one draw. Without such samples the sizes are ().
    """
    levels = _different()
    made = draw(random.next_draw(stream, _ALL), tuple([made.size for made in levels]))
    for level in levels:
        made = enter(made, 0, level)
    return made


def _different() -> list[Level]:
    return [made for made in _running.scope().value if made.randomness == "different"]


def on_host(*values: Any, rank: int = 0) -> list[Any]:
    """The parameters of a draw as NumPy arrays, or numbers: those of all samples that draw different numbers, in front.

    rank: of the draw of a sample, with which they broadcast; by default that of the parameter with the most axes.
    Raises StateError for parameters of each sample where randomness is no other.
    """
    levels, found = _different(), []
    rank = max([rank, *[value.ndim for value in values if isinstance(value, Tensor)]])
    for value in values:
        if isinstance(value, Tensor):
            for made in _running.scope().value:
                if made not in levels and is_at(value.array, made):
                    needs = 'parameters that all samples share, for a draw with randomness="same"'
                    cure = 'pass randomness="different"'
                    raise _refused() if made.randomness == "error" else StateError("vmap", needs, "others", cure)
            value = value.detach()
            if levels and value.ndim < rank:
                value = value.reshape((1,) * (rank - value.ndim) + tuple(value.shape))
            for made in reversed(levels):
                value = leave(value, 0, made)
            value = value.numpy(force=True)
        found.append(value)
    return found


def need_own_memory(array: Any) -> None:
    """Raise StateError where samples draw different numbers into an array that they share."""
    if not all(is_at(array, made) for made in _different()):
        raise changes_unbatched()


def samples(made: Level) -> Iterator[int]:
    """The numbers of the samples of `made`, for a loop; with randomness="same" each draws what the first one draws."""
    start = random.default.state()
    for sample in range(made.size):
        if made.randomness == "same":
            random.default.restore(start)
        yield sample
