"""Ways to lay an array out in memory. Each ends where its memory ends, so that a read or a write beyond it is one
beyond an allocation, which AddressSanitizer sees.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np


class Subclass(np.ndarray[Any, Any]):
    """As users define them."""


def laid_out(array: Any, layout: str, random: Random) -> Any:
    """`array` in the layout of this name: the same values, but for those that share memory."""
    return LAYOUTS_BY_NAME[layout](array, random) if array.ndim or layout in _FOR_NUMBERS else array


def _ordered(array: Any, axes: Any) -> Any:
    return np.ascontiguousarray(array.transpose(axes)).transpose(np.argsort(axes))


def _permuted(array: Any, random: Random) -> Any:
    return _ordered(array, random.sample(range(array.ndim), array.ndim))


def _swapped(array: Any, random: Random) -> Any:
    return np.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1)


def _channels_last(array: Any, random: Random) -> Any:
    return _ordered(array, (0, *range(2, array.ndim), 1)) if array.ndim > 2 else array


def _reversed(array: Any, random: Random) -> Any:
    flips = tuple([slice(None, None, random.choice((1, -1))) for _ in array.shape])
    return np.ascontiguousarray(array[flips])[flips]


def _reversed_rows(array: Any, random: Random) -> Any:
    return np.ascontiguousarray(array[..., ::-1])[..., ::-1]


def _stepped(array: Any, random: Random) -> Any:
    # Every second or third element along an axis, the last of which is the last of the memory.
    axis, step = random.randrange(array.ndim), random.choice((2, 3))
    return _inside(array, axis, max(array.shape[axis] * step - step + 1, 0), slice(None, None, step))


def _offset(array: Any, random: Random) -> Any:
    axis, more = random.randrange(array.ndim), random.choice((1, 3))
    return _inside(array, axis, array.shape[axis] + more, slice(more, None))


def _inside(array: Any, axis: int, length: int, part: slice) -> Any:
    shape = list(array.shape)
    shape[axis] = length
    view = np.zeros(shape, array.dtype)[(slice(None),) * axis + (part,)]
    view[...] = array
    return view


def _broadcast(array: Any, random: Random) -> Any:
    axis = random.randrange(array.ndim)
    return np.broadcast_to(array.take([0], axis).copy() if array.shape[axis] else array, array.shape)


def _broadcast_all(array: Any, random: Random) -> Any:
    return np.broadcast_to(array.ravel()[:1].reshape(()).copy(), array.shape) if array.size else array


def _windows(array: Any, random: Random) -> Any:
    # Rows that overlap: each begins an element behind the one before.
    if array.ndim < 2 or not array.size:
        return array
    n = array.shape[-1]
    memory = np.concatenate([array[..., 0, :], array[..., 1:, -1]], -1)
    views = np.lib.stride_tricks.sliding_window_view(memory, n, -1)
    return views.reshape(array.shape) if views.shape != array.shape else views


def _overlapping(array: Any, random: Random) -> Any:
    # Any strides, as of windows of windows; often two axes merge to one, and the step of a third lies between theirs.
    if not array.size:
        return array
    steps = [random.choice((0, 1, 1, 2, 3, 5)) for _ in array.shape]
    if array.ndim > 2 and random.random() < 0.7:
        outer = random.randrange(array.ndim - 1)
        between = random.choice([axis for axis in range(array.ndim) if axis not in (outer, outer + 1)])
        steps[outer + 1], steps[outer], steps[between] = 1, array.shape[outer + 1], 2
    reach = 1 + sum((n - 1) * step for n, step in zip(array.shape, steps, strict=True))
    memory = np.resize(array.ravel(), reach)
    return np.lib.stride_tricks.as_strided(memory, array.shape, [step * array.itemsize for step in steps])


def _misaligned(array: Any, random: Random) -> Any:
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    view = raw.view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def _read_only(array: Any, random: Random) -> Any:
    made = array.copy()
    made.flags.writeable = False
    return made


def _mapped(array: Any, random: Random) -> Any:
    if not array.size:
        return array
    with tempfile.TemporaryFile() as file:
        made = np.memmap(file, array.dtype, "w+", shape=array.shape)
    made[...] = array
    return made


def _emptied(array: Any, random: Random) -> Any:
    # Of an array without elements a part of one that has some, with its strides.
    whole = np.zeros([max(n, 3) for n in array.shape], array.dtype)
    view = whole[tuple([slice(1, n + 1) if n < 3 else slice(None) for n in array.shape])]
    view[...] = array
    return view


LAYOUTS_BY_NAME: dict[str, Callable[[Any, Random], Any]] = {
    "C": lambda array, random: np.array(array, order="C"),
    "F": lambda array, random: np.array(array, order="F"),
    "permuted": _permuted,
    "swapped": _swapped,
    "channels last": _channels_last,
    "reversed": _reversed,
    "reversed rows": _reversed_rows,
    "stepped": _stepped,
    "offset": _offset,
    "broadcast": _broadcast,
    "one number": _broadcast_all,
    "windows": _windows,
    "overlapping": _overlapping,
    "misaligned": _misaligned,
    "read-only": _read_only,
    "mapped": _mapped,
    "part": _emptied,
    "subclass": lambda array, random: np.array(array).view(Subclass),
    "masked": lambda array, random: np.ma.array(array),
}
LAYOUTS = tuple(LAYOUTS_BY_NAME)
_FOR_NUMBERS = {"C", "misaligned", "read-only", "subclass", "masked"}  # also for arrays of no axes
