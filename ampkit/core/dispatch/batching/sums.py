"""Gradients of what the samples of a `vmap` share: one of each sample within the mapped function, then their sum."""

from __future__ import annotations

from typing import Any

from ampkit.base.dtypes import accumulator
from ampkit.base.scoped import ScopedVariable

from ...autograd.accumulate import sum_over
from ...casts import cast
from .array import BatchedArray, Level, is_at, is_inner

# Whether they stay one per sample after the mapped function has ended, as in a pass that pushes tangents.
kept_apart = ScopedVariable("ampkit.kept_apart", False)


def is_summing(level: Level) -> bool:
    """Whether gradients of what the samples of `level` share are summed over them."""
    return not level.open and not kept_apart.scope().value


def sum_if_ended(gradient: Any, level: Level) -> Any:
    """The gradient of what the samples share, summed over them where their function has ended."""
    if not is_summing(level) or not is_at(gradient, level):
        return gradient
    if is_inner(gradient, level):
        return BatchedArray(sum_if_ended(gradient.data, level), gradient.level)
    data = gradient.data
    wide = cast(data, accumulator(data.dtype))
    return cast(sum_over(wide, (0,)).reshape(data.shape[1:]), data.dtype)
