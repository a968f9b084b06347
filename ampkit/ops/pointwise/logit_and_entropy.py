"""logit, x log y and entropy terms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast

from ..named import named

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


def _times_log(name: str, log: Any, one: int, doc: str) -> Op:
    # input * log(other), where log is the logarithm of other + 1 - one, and so 0 at `one`.
    @op(cast=Cast.WIDEST, integers="float")
    @named(name, doc)
    def made(input: Array, other: Array):
        zero = (plain(input) == 0) & (plain(other) == plain(other))
        kind = (input if hasattr(input, "dtype") else other).dtype  # one of them may be a number
        out = np.where(zero, 0, input * log(np.where(zero, one, other).astype(kind)))
        return out, Saved(input=input, other=other)

    @made.backward
    def backward(dy, saved, needs):
        x, y = saved.input, saved.other
        flat = (plain(y) <= one - 1) & (plain(x) == 0)
        dx = dy * np.where(flat, 0, log(np.where(flat, one, y))) if needs[0] is not None else None
        return dx, dy * x / (y if one else 1 + y) if needs[1] is not None else None

    return made


xlogy = _times_log("xlogy", np.log, 1, "input * log(other), broadcast; 0 where input is 0, unless other is NaN.")
xlog1py = _times_log(
    "xlog1py", np.log1p, 0, "input * log(1 + other), broadcast; 0 where input is 0, unless other is NaN."
)


@op(cast=Cast.KEEP, integers="float")
def entr(input: Array):
    """-input * log(input), elementwise: 0 at 0 and -inf below."""
    below, zero = plain(input) < 0, plain(input) == 0
    found = -input * np.log(np.where(below | zero, 1, input))
    return np.where(below, -math.inf, np.where(zero, 0, found)), Saved(input=input)


@entr.backward
def entr_backward(dy, saved, needs):
    return dy * (-np.log(saved.input) - 1)
