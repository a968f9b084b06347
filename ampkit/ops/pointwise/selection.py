"""Choices between values: the larger, the smaller, bounds, masks. Operands broadcast and agree on the widest dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..indexing.masks import kept

__all__ = ["clamp", "clip", "hardtanh", "masked_fill", "maximum", "minimum", "relu6", "where"]


@op(cast=Cast.WIDEST, moves=True, numpy=np.maximum)
def maximum(input: Array, other: Array):
    """The larger of two, broadcast; NaN wins. Where both are equal each takes half of the gradient; with NaN all."""
    return np.maximum(input, other), Saved(input=input, other=other)


@maximum.backward
def maximum_backward(dy, saved, needs):
    return _shared(dy, plain(saved.input), plain(saved.other))


@op(cast=Cast.WIDEST, moves=True, numpy=np.minimum)
def minimum(input: Array, other: Array):
    """The smaller of two, broadcast; NaN wins. Where both are equal each takes half of the gradient; with NaN all."""
    return np.minimum(input, other), Saved(input=input, other=other)


@minimum.backward
def minimum_backward(dy, saved, needs):
    return _shared(dy, plain(saved.other), plain(saved.input))


def _shared(dy: Any, winner: Any, loser: Any) -> tuple[Any, Any]:
    dy = np.where(winner == loser, dy * 0.5, dy)
    return kept(dy, np.logical_not(winner < loser)), kept(dy, np.logical_not(winner > loser))


@op(cast=Cast.WIDEST, moves=True)
def clamp(input: Array, min: Array | None = None, max: Array | None = None):
    """input held between min and max (numbers or tensors; one may be missing); where min > max, max.

    At a bound the gradient goes to input. With NaN there is none.

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
    alone = high is None
    low, high = -math.inf if low is None else low, math.inf if alone else high
    return (
        kept(dy, (x >= low) & (x <= high)) if needs[0] else None,
        kept(dy, (x < low) & ((low < high) | alone)) if needs[1] else None,
        kept(dy, (x > high) | (low > high)) if needs[2] else None,
    )


@op(cast=Cast.WIDEST, moves=True, numpy=np.where)
def where_(condition: Index, input: Array, other: Array):
    """input where condition, else other; broadcast."""
    return np.where(condition, input, other), Saved(condition=condition)


@where_.check
def where_check(condition, input, other):
    if getattr(condition, "dtype", dtypes.bool_) != dtypes.bool_:
        raise DTypeError("where", "a condition of dtype bool", condition.dtype.name, "compare it: x != 0")
    for array, number in ((input, other), (other, input)):
        if type(number) is int and hasattr(array, "dtype"):
            need_to_hold("where", array.dtype, number)


@where_.backward
def where_backward(dy, saved, needs):
    condition = plain(saved.condition)
    return None, kept(dy, condition) if needs[1] else None, kept(dy, np.logical_not(condition)) if needs[2] else None


def where(condition: Tensor, input: Tensor | float | None = None, other: Tensor | float | None = None) -> Any:
    """input where condition, else other; broadcast: condition [...] bool, two tensors or numbers -> [...].

    Without input and other: the indices of the true elements, one int64 tensor per axis.
    Raises DTypeError for a condition that is not bool, ShapeError if the shapes do not broadcast.
    """
    if input is None and other is None:
        return tuple(Tensor(found) for found in np.nonzero(np.atleast_1d(condition.array)))
    if input is None or other is None:
        raise ArgumentError("where", "input and other, or neither", "one of them")
    if not isinstance(input, Tensor) and not isinstance(other, Tensor):
        kinds = {type(input), type(other)}
        wanted = dtypes.float32 if float in kinds else dtypes.bool_ if kinds == {bool} else dtypes.int64
        other = Tensor(np.full_like(condition.array, other, dtype=wanted))
    return where_(condition, input, other)


def masked_fill(input: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """input with `value` (a number or a tensor of one element) where mask [...] bool is true; broadcast.

    The answer has input's dtype. Raises ArgumentError for a value that this dtype does not hold, DTypeError for a mask
    that is not bool, ShapeError for a mask that does not broadcast with input.
    """
    if isinstance(value, Tensor):
        return where(mask, value.to(input.dtype), input)
    return masked_fill_(input, mask, value)


@op(cast=Cast.KEEP, moves=True)
def masked_fill_(input: Array, mask: Index, value: float):
    """input, with the number `value` where mask."""
    return np.where(mask, np.asarray(value, input.dtype, like=input), input), Saved(mask=mask)


@masked_fill_.check
def masked_fill_check(input, mask, value):
    need_to_hold("masked_fill", input.dtype, value)
    if getattr(mask, "dtype", None) != dtypes.bool_:
        got = getattr(mask, "dtype", type(mask)).name if hasattr(mask, "dtype") else type(mask).__name__
        raise DTypeError("masked_fill", "a mask of dtype bool", got, "compare it: mask != 0")
    if mask.shape != input.shape and _meet(mask.shape, input.shape) is None:
        needs = f"a mask that broadcasts with {tuple(input.shape)}"
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
    elif dtype != dtypes.bool_ and (not math.isfinite(value) or value != int(value)):
        raise ArgumentError(where, f"a whole number, for {dtype.name}", f"{value}", "cast the tensor: x.float()")
    elif dtype != dtypes.bool_ and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise ArgumentError(where, f"a number that {dtype.name} holds", f"{value}", "cast the tensor: x.long()")


@masked_fill_.backward
def masked_fill_backward(dy, saved, needs, value):
    return kept(dy, np.logical_not(plain(saved.mask))), None


@op(cast=Cast.KEEP, moves=True)
def hardtanh(input: Array, min_val=-1.0, max_val=1.0, inplace: CompatArg = False):
    """input held between min_val and max_val, in its dtype; the slope at both is 0, and 1 for NaN.

    Raises ArgumentError for a min_val above max_val.
    """
    low, high = min_val, max_val
    if not dtypes.is_float(input.dtype):
        if not low == low or not high == high:
            raise ArgumentError("hardtanh", "bounds other than NaN for integers", f"{low} and {high}")
        limits = np.iinfo(input.dtype)
        low, high = [sorted((limits.min, int(bound), limits.max))[1] for bound in (low, high)]
    return np.minimum(np.maximum(input, low), high), Saved(input=input)


@hardtanh.check
def hardtanh_check(input, min_val, max_val):
    if input.dtype == dtypes.bool_:
        raise DTypeError("hardtanh", "numbers", "bool", "cast it: x.float()")
    if min_val > max_val:
        raise ArgumentError("hardtanh", "min_val up to max_val", f"{min_val} and {max_val}")


@hardtanh.backward
def hardtanh_backward(dy, saved, needs, min_val, max_val):
    x = plain(saved.input)
    return kept(dy, np.logical_not((x <= min_val) | (x >= max_val)))


def relu6(input: Tensor, inplace: CompatArg = False) -> Tensor:
    """input held between 0 and 6 (Krizhevsky 2010, Convolutional deep belief networks on CIFAR-10)."""
    return hardtanh(input, 0, 6)


clip = clamp
