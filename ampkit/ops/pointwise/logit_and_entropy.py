"""logit, x log y and entropy terms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

__all__ = ["logit", "xlogy"]


@op(cast=Cast.KEEP, integers="float")
def logit(input: Array, eps: float | None = None):
    """log(input / (1 - input)), the inverse of `sigmoid`: NaN outside [0, 1]; with eps, of input in [eps, 1 - eps].

    Where eps clamps input the gradient is 0; outside [0, 1] it is NaN.
    """
    x = input if eps is None else np.minimum(np.maximum(input, eps), 1 - eps)
    return np.log(x / (1 - x)), Saved(input=input)


@logit.backward
def logit_backward(dy, saved, needs, eps):
    x = saved.input
    low, high, outside = (0, 1, math.nan) if eps is None else (eps, 1 - eps, 0)
    clamped = (plain(x) < low) | (plain(x) > high)
    return np.where(clamped, outside, dy / np.where(clamped, 1, x * (1 - x)))


@op(cast=Cast.WIDEST, integers="float")
def xlogy(input: Array, other: Array):
    """input * log(other), broadcast; 0 where input is 0, unless other is NaN."""
    return _times_log(input, other, np.log, 1), Saved(input=input, other=other)


def _times_log(x: Any, y: Any, logarithm: Any, neutral: int) -> Any:
    # x * logarithm(y), where logarithm(neutral) is 0.
    zero = (plain(x) == 0) & (plain(y) == plain(y))
    kind = (x if hasattr(x, "dtype") else y).dtype  # one of them may be a number
    return np.where(zero, 0, x * logarithm(np.where(zero, neutral, y).astype(kind)))


@xlogy.backward
def xlogy_backward(dy, saved, needs):
    x, y = saved.input, saved.other
    flat = plain(y) <= 0
    dx = dy * np.where(flat & (plain(x) == 0), 0, np.log(y)) if needs[0] is not None else None
    return dx, dy * x / y if needs[1] is not None else None


@op(cast=Cast.WIDEST, integers="float")
def xlog1py(input: Array, other: Array):
    """input * log(1 + other), broadcast; 0 where input is 0, unless other is NaN."""
    return _times_log(input, other, np.log1p, 0), Saved(input=input, other=other)


@xlog1py.backward
def xlog1py_backward(dy, saved, needs):
    x, y = saved.input, saved.other
    flat = (plain(y) <= -1) & (plain(x) == 0)
    dx = dy * np.where(flat, 0, np.log1p(np.where(flat, 0, y))) if needs[0] is not None else None
    return dx, dy * x / (1 + y) if needs[1] is not None else None


@op(cast=Cast.KEEP, integers="float")
def entr(input: Array):
    """-input * log(input), elementwise: 0 at 0 and -inf below."""
    below, zero = plain(input) < 0, plain(input) == 0
    found = -input * np.log(np.where(below | zero, 1, input))
    return np.where(below, -math.inf, np.where(zero, 0, found)), Saved(input=input)


@entr.backward
def entr_backward(dy, saved, needs):
    return dy * (-np.log(saved.input) - 1)
