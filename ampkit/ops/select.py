"""Choices between values: the larger, the smaller, bounds, masks. Operands broadcast and agree on the widest dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core import dtypes
from ..core.errors import ArgumentError, DTypeError, ShapeError
from ..core.op import Array, Index, Saved, op
from ..core.policy import Cast
from ..core.replay import plain
from ..core.tensor import Tensor
from ..core.words import Word
from .masks import kept

__all__ = ["clamp", "clip", "hardtanh", "masked_fill", "maximum", "minimum", "relu6", "where"]


@op(cast=Cast.WIDEST, moves=True, numpy=np.maximum)
def maximum(input: Array, other: Array):
    """The larger of two, broadcast; NaN wins. Where both are equal each takes half of the gradient."""
    return np.maximum(input, other), Saved(input=input, other=other)


@maximum.backward
def maximum_backward(dy, saved, needs):
    return _shared(dy, plain(saved.input), plain(saved.other))


@op(cast=Cast.WIDEST, moves=True, numpy=np.minimum)
def minimum(input: Array, other: Array):
    """The smaller of two, broadcast; NaN wins. Where both are equal each takes half of the gradient."""
    return np.minimum(input, other), Saved(input=input, other=other)


@minimum.backward
def minimum_backward(dy, saved, needs):
    return _shared(dy, plain(saved.other), plain(saved.input))


def _shared(dy: Any, winner: Any, loser: Any) -> tuple[Any, Any]:
    half = np.where(winner == loser, dy * 0.5, 0)
    return kept(dy, winner > loser) + half, kept(dy, winner < loser) + half


@op(cast=Cast.WIDEST, moves=True)
def clamp(input: Array, min: Array | None = None, max: Array | None = None):
    """input held between min and max (numbers or tensors; one may be missing); where min > max, max.

    Raises ArgumentError without any bound.
    """
    out = input if min is None else np.maximum(input, min)
    return out if max is None else np.minimum(out, max), Saved(input=input, min=min, max=max)


@clamp.check
def clamp_check(input, min, max):
    if min is None and max is None:
        raise ArgumentError("clamp", "min or max", "neither")


@clamp.backward
def clamp_backward(dy, saved, needs):
    x, low, high = plain(saved.input), plain(saved.min), plain(saved.max)
    under = x < low if low is not None else False
    over = (np.where(under, low, x) if low is not None else x) > high if high is not None else False
    under = under & np.logical_not(over)
    return (
        kept(dy, np.logical_not(under | over)) if needs[0] else None,
        kept(dy, under) if needs[1] else None,
        kept(dy, over) if needs[2] else None,
    )


@op(cast=Cast.WIDEST, moves=True, numpy=np.where)
def where_(condition: Index, input: Array, other: Array):
    """input where condition, else other; broadcast."""
    return np.where(condition, input, other), Saved(condition=condition)


@where_.check
def where_check(condition, input, other):
    if getattr(condition, "dtype", dtypes.bool_) != dtypes.bool_:
        raise DTypeError("where", "a condition of dtype bool", condition.dtype.name, "compare it: x != 0")


@where_.backward
def where_backward(dy, saved, needs):
    condition = plain(saved.condition)
    return None, kept(dy, condition) if needs[1] else None, kept(dy, np.logical_not(condition)) if needs[2] else None


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """input where condition, else other; broadcast: condition [...] bool, two tensors or numbers -> [...].

    Without input and other: the indices of the true elements, one int64 tensor per axis.
    Raises DTypeError for a condition that is not bool, ShapeError if the shapes do not broadcast.
    """
    if input is None and other is None:
        return tuple(Tensor(found) for found in np.nonzero(condition.array))
    if not isinstance(input, Tensor) and not isinstance(other, Tensor):
        wanted = dtypes.float32 if float in (type(input), type(other)) else dtypes.int64
        other = Tensor(np.full_like(condition.array, other, dtype=wanted))
    return where_(condition, input, other)


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """input with `value` (a number or a tensor of one element) where mask [...] bool is true; mask broadcasts to input.

    The answer has input's dtype. Raises ArgumentError for a value that this dtype does not hold, DTypeError for a mask
    that is not bool, ShapeError for a mask that does not broadcast to input.
    """
    if isinstance(value, Tensor):
        return where(mask, value.to(input.dtype), input)
    return masked_fill_(input, mask, value)


@op(cast=Cast.KEEP, moves=True)
def masked_fill_(input: Array, mask: Index, value):
    """input, with the number `value` where mask."""
    return np.where(mask, np.asarray(value, input.dtype, like=input), input), Saved(mask=mask)


@masked_fill_.check
def masked_fill_check(input, mask, value):
    need_to_hold("masked_fill", input.dtype, value)
    if getattr(mask, "dtype", None) != dtypes.bool_:
        got = getattr(mask, "dtype", type(mask)).name if hasattr(mask, "dtype") else type(mask).__name__
        raise DTypeError("masked_fill", "a mask of dtype bool", got, "compare it: mask != 0")
    if mask.shape != input.shape and _meet(mask.shape, input.shape) != input.shape:
        needs = f"a mask that broadcasts to {tuple(input.shape)}"
        raise ShapeError("masked_fill", needs, f"shape {tuple(mask.shape)}")


def _meet(*shapes: tuple[int, ...]) -> Any:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def need_to_hold(where: str, dtype: dtypes.DType, value: float) -> None:
    """Raise ArgumentError if the number `value` is beyond what `dtype` holds: a mask's -1e9 is no number in float16."""
    if dtypes.is_float(dtype):
        limits = dtypes.finfo(dtype)
        if math.isfinite(value) and abs(value) > limits.max:
            cure = f'use float("-inf"), or finfo(input.dtype).min = {limits.min:g}'
            raise ArgumentError(where, f"a value that {dtype.name} holds (largest {limits.max:g})", f"{value:g}", cure)
    elif dtype != dtypes.bool_ and (value != value or value != int(value) if math.isfinite(value) else True):
        raise ArgumentError(where, f"a whole number, for {dtype.name}", f"{value}", "cast the tensor: x.float()")


@masked_fill_.backward
def masked_fill_backward(dy, saved, needs, value):
    return kept(dy, np.logical_not(plain(saved.mask))), None


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: Word = False) -> Tensor:
    """input held between min_val and max_val."""
    return clamp(input, min_val, max_val)


def relu6(input: Tensor, inplace: Word = False) -> Tensor:
    """input held between 0 and 6 (Krizhevsky 2010, Convolutional deep belief networks on CIFAR-10)."""
    return clamp(input, 0, 6)


clip = clamp
