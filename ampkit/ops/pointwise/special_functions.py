"""Special functions: the complement and the inverse of the error function, gamma functions, logits."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError
from ampkit.core.autograd.traced_array import TracedArray, apply, plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from .error_function import complement, inverse
from .gamma_function import log_gamma, poly_gamma

__all__ = ["digamma", "erfc", "erfinv", "lgamma", "logit", "polygamma", "xlogy"]


@op(cast=Cast.KEEP, integers="float")
def erfc(input: Array):
    """1 - erf(input), precise where erf is nearly 1. W. J. Cody 1969, Math. Comp. 23, 631-637."""
    return complement(input), Saved(input=input)


@erfc.backward
def erfc_backward(dy, saved, needs):
    return dy * (-2 / math.sqrt(math.pi) * np.exp(-saved.input * saved.input))


@op(cast=Cast.FP32, integers="float")
def erfinv(input: Array):
    """The number whose error function is input; infinite at -1 and 1, NaN beyond. In float32.

    M. J. Wichura 1988, Algorithm AS 241, Applied Statistics 37, 477-484.
    """
    out = inverse(input)
    return out, Saved(out=out)


@erfinv.backward
def erfinv_backward(dy, saved, needs):
    return dy * (math.sqrt(math.pi) / 2 * np.exp(saved.out * saved.out))


@op(cast=Cast.KEEP, integers="float")
def lgamma(input: Array):
    """The logarithm of the absolute value of the gamma function; infinite at 0 and at negative whole numbers."""
    return log_gamma(input), Saved(input=input)


@lgamma.backward
def lgamma_backward(dy, saved, needs):
    return dy * apply(polygamma_, saved.input, n=0)


_ORDERS = 1 << 10  # derivatives of a higher order are beyond all formats: 170! is the largest that float64 holds


@op(cast=Cast.KEEP, integers="float")
def polygamma_(input: Array, n):
    """`polygamma`, input first."""
    if isinstance(input, TracedArray):
        return poly_gamma(n, input), Saved(input=input)
    # In float64: below 0 the reflection subtracts terms many times larger than the answer.
    return poly_gamma(n, input.astype(np.float64)).astype(input.dtype), Saved(input=input)


@polygamma_.check
def polygamma_check(input, n):
    if n < 0:
        raise ArgumentError("polygamma", "n from 0", f"{n}")
    if n > _ORDERS:
        raise ArgumentError("polygamma", f"n up to {_ORDERS}", f"{n}")


@polygamma_.backward
def polygamma_backward(dy, saved, needs, n):
    return dy * apply(polygamma_, saved.input, n=n + 1)


def polygamma(n: int, input: Tensor) -> Tensor:
    """The derivative of order n of `digamma`; infinite at 0 and at negative whole numbers, for n from 1.

    Raises ArgumentError for a negative n.
    """
    return polygamma_(input, index(n))


def digamma(input: Tensor) -> Tensor:
    """The derivative of `lgamma`; -inf at 0, NaN at negative whole numbers."""
    return polygamma_(input, 0)


@op(cast=Cast.KEEP, integers="float")
def logit(input: Array, eps: float | None = None):
    """log(input / (1 - input)), the inverse of `sigmoid`: NaN outside [0, 1]; with eps, of input in [eps, 1 - eps].

    Where eps has moved input the slope is 0; outside [0, 1] it is NaN.
    """
    x = input if eps is None else np.minimum(np.maximum(input, eps), 1 - eps)
    return np.log(x / (1 - x)), Saved(input=input)


@logit.backward
def logit_backward(dy, saved, needs, eps):
    x = saved.input
    low, high, outside = (0, 1, math.nan) if eps is None else (eps, 1 - eps, 0)
    moved = (plain(x) < low) | (plain(x) > high)
    return np.where(moved, outside, dy / np.where(moved, 1, x * (1 - x)))


@op(cast=Cast.WIDEST, integers="float")
def xlogy(input: Array, other: Array):
    """input * log(other), broadcast; 0 where input is 0, unless other is NaN."""
    return _products(input, other, np.log, 1), Saved(input=input, other=other)


def _products(x: Any, y: Any, logarithm: Any, neutral: int) -> Any:
    # x * logarithm(y), where logarithm(neutral) is 0.
    gone = (plain(x) == 0) & (plain(y) == plain(y))
    kind = (x if hasattr(x, "dtype") else y).dtype  # one of them may be a number
    return np.where(gone, 0, x * logarithm(np.where(gone, neutral, y).astype(kind)))


@xlogy.backward
def xlogy_backward(dy, saved, needs):
    x, y = saved.input, saved.other
    flat = plain(y) <= 0
    dx = dy * np.where(flat & (plain(x) == 0), 0, np.log(y)) if needs[0] is not None else None
    return dx, dy * x / y if needs[1] is not None else None


@op(cast=Cast.WIDEST, integers="float")
def xlog1py(input: Array, other: Array):
    """input * log(1 + other), broadcast; 0 where input is 0, unless other is NaN."""
    return _products(input, other, np.log1p, 0), Saved(input=input, other=other)


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
