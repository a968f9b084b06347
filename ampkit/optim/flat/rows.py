"""Norms by rows: the same bits whichever ranks have which rows of the gradients.

The powers of each row are added in halves, then those of all rows in the order of the parameters. Each addition is one
of two arrays, element by element, so that it has the same bits for few rows as for many, on any number of threads.
Where a layer is computed in shards that have columns, the columns of each shard are a row of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ... import backends
from ...backends import Array
from ...base import dtypes
from ...core.tensor import Tensor
from .memory import CHUNK


def power_sum_by_rows(owners: Sequence[Tensor], order: float) -> Array:
    """The float64 sum [] of |g|^order over the gradients of `owners`, or the largest |g| for infinity.

    All ranks that have rows of them call it.
    """
    found = [_of_whole(owner, order) for owner in owners]
    shared: dict[Any, tuple[Any, list[int]]] = {}
    for place, owner in enumerate(owners):
        if (sharding := owner._sharding) is not None:
            shared.setdefault(sharding.groups, (sharding, []))[1].append(place)
    for sharding, places in shared.values():
        joined = sharding.merged(np.concatenate([found[place] for place in places]))
        ends = np.cumsum([found[place].size for place in places])[:-1].tolist()
        for place, part in zip(places, np.split(joined, ends), strict=True):
            found[place] = part
    device = found[0]
    whole = np.concatenate([backends.to_device_of(part, device) for part in found]).reshape(1, -1)
    return _in_halves(whole, order).reshape(())


def _of_whole(owner: Tensor, order: float) -> Array:
    """What each row of the whole gradient gives [rows * columns' shards]: 0 for those that this rank has not."""
    assert owner._grad is not None
    gradient, sharding = owner._grad.array, owner._sharding
    shards = owner._shards[2] if owner._shards is not None and owner._shards[0] else 1
    with backends.device_guard(gradient):
        if sharding is None and shards == 1:
            return _of_rows(gradient.reshape(*(gradient.shape[:1] or (1,)), math.prod(gradient.shape[1:])), order)
        shape = gradient.shape if sharding is None else sharding.full_shape
        box = tuple([slice(0, length) for length in shape])
        whole = backends.backend_of(gradient).zeros((shape[0], shards), dtypes.float64)
        for here, there in [(box, box)] if sharding is None else sharding.boxes():
            _add_box(whole, gradient[here], there, shape[1] // shards if shards > 1 else 0, order)
        return whole.reshape(-1)


def _add_box(whole: Array, gradient: Array, there: Any, columns: int, order: float) -> None:
    # Of a box of the whole gradient. columns: of a shard, 0 where no columns are cut.
    first = there[1].start // columns if columns else 0
    for place in range((there[1].stop - there[1].start) // columns if columns else 1):
        part = gradient[:, place * columns : (place + 1) * columns] if columns else gradient
        whole[there[0], first + place] = _of_rows(part.reshape(len(part), math.prod(part.shape[1:])), order)


def _of_rows(rows: Array, order: float) -> Array:
    backend = backends.backend_of(rows)
    made = backend.zeros((len(rows),), dtypes.float64)
    for part in _few(rows):
        wide = backend.cast(rows[part], dtypes.float64)
        powers = wide * wide if order == 2 else np.abs(wide)
        made[part] = _in_halves(powers if order in (1, 2, math.inf) else np.power(powers, order), order)
    return made


def _few(rows: Array) -> Iterable[slice]:
    count, width = rows.shape
    step = max(1, CHUNK // max(1, width))
    return (slice(begin, begin + step) for begin in range(0, count if width else 0, step))


def _in_halves(values: Array, order: float) -> Array:
    """The sums [rows] of values [rows, columns], or the largest of each row: halves of the columns, again and again."""
    add = np.maximum if order == math.inf else np.add
    width = values.shape[1]
    while width > 1:
        half = (width + 1) // 2
        add(values[:, : width - half], values[:, half:width], out=values[:, : width - half])
        width = half
    return values[:, 0] if width else values.sum(axis=1)
