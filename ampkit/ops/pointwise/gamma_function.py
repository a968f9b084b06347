"""lgamma, digamma and polygamma, and the series that compute them: NumPy and CuPy have none."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError
from ampkit.core.autograd.traced_array import TracedArray, apply
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from .elementwise import unary

__all__ = ["digamma", "lgamma", "polygamma"]


# zeta(k) - 1 for k = 2, 3, ...: from there on its terms of the series below are beyond float64.
_ZETA = (0.6449340668482264, 0.2020569031595943, 0.08232323371113819, 0.03692775514336993, 0.01734306198444914,
      0.008349277381922827, 0.00407735619794434, 0.0020083928260822143, 0.0009945751278180853,
      0.0004941886041194645, 0.0002460865533080483, 0.00012271334757848915, 6.124813505870483e-05,
      3.058823630702049e-05, 1.528225940865187e-05, 7.637197637899763e-06, 3.81729326499984e-06,
      1.908212716553939e-06, 9.539620338727962e-07, 4.769329867878064e-07, 2.38450502727733e-07,
      1.1921992596531106e-07, 5.960818905125948e-08, 2.980350351465228e-08, 1.4901554828365043e-08,
      7.45071178983543e-09, 3.725334024788457e-09)  # fmt: skip

_EULER = 0.5772156649015329
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B_2, B_4, ...


def lgamma_array(x: Any) -> Any:
    """log |gamma(x)|, element by element: infinite at 0 and below it at integers; within 20 eps for x > 0.

    Within [1.5, 2.5] by the series around 2, Abramowitz and Stegun 6.1.33; elsewhere by recurrence, from 16 on by
    Stirling's series, 6.1.41, below 0 by reflection, 6.1.17.
    """
    below = x < 0.5
    y = np.where(below, 1 - x, x)
    found = np.where(y < 16, _lgamma_small(np.minimum(y, 16)), _lgamma_stirling(np.maximum(y, 16)))
    reduced = np.abs(x - 2 * np.round(x / 2))  # the argument of |sin(pi x)| reduced to [0, 1]
    sine = np.sin(math.pi * np.minimum(reduced, 1 - reduced))
    found = np.where(below, math.log(math.pi) - np.log(sine) - found, found)
    return np.where(np.abs(x) == np.inf, np.inf, found)


def _lgamma_small(y: Any) -> Any:
    factor = np.ones_like(y)
    for _ in range(14):
        high = y > 2.5
        y = np.where(high, y - 1, y)
        factor = np.where(high, factor * y, factor)
    low = y < 1.5
    z = np.where(low, y - 1, y - 2)
    series = z * (1 - _EULER)
    power = -z
    for k, zeta in enumerate(_ZETA, 2):
        power = power * -z
        series = series + zeta / k * power
    return series + np.log(factor) - np.where(low, np.log1p(np.where(low, z, 0)), 0)


def _lgamma_stirling(y: Any) -> Any:
    t = 1 / y
    return (y - 0.5) * (np.log(y) - 1) + 0.5 * (math.log(2 * math.pi) - 1) + t * _bernoulli_series(t * t, -1)


def _bernoulli_series(t: Any, n: int) -> Any:
    # B_2k (2k + n - 1)! / (2k)! t^(k - 1) over k = 1, 2, ...
    total: Any = 0
    for k in range(len(_BERNOULLI), 0, -1):
        total = total * t + _BERNOULLI[k - 1] * math.factorial(2 * k + n - 1) / math.factorial(2 * k)
    return total


def polygamma_array(n: int, x: Any) -> Any:
    """The derivative of order n + 1 of log gamma(x), element by element.

    By recurrence to beyond 10 + n and there by its series, Abramowitz and Stegun 6.4.6 and 6.4.11; below 0 by
    reflection, 6.4.7.
    """
    y = np.where(x < 0, 1 - x, x)
    total = np.zeros_like(y)
    for _ in range(10 + n):
        low = y < 10 + n
        total = total + np.where(low, y ** -(n + 1.0), 0)
        y = np.where(low, y + 1, y)
    first = -np.log(y) if n == 0 else math.factorial(n - 1) * y ** -float(n)
    tail = y ** -(n + 2.0) * _bernoulli_series(y**-2.0, n)
    found = (-1) ** (n + 1) * (first + math.factorial(n) * (0.5 * y ** -(n + 1.0) + total) + tail)
    return np.where(x < 0, _polygamma_reflection(n, x, found), found)


def _polygamma_reflection(n: int, x: Any, found: Any) -> Any:
    # From `found` at 1 - x. At a pole NaN for n = 0, else as PyTorch has it: -inf for even n, inf for odd.
    angle = math.pi * (x - np.round(x))
    pole = angle == 0
    cotangent, total = 1 / np.tan(np.where(pole, 1, angle)), np.zeros_like(x)
    for factor in reversed(_cotangent_derivative(n)):
        total = total * cotangent + factor
    at_pole = math.nan if n == 0 else math.inf if n % 2 else -math.inf
    return np.where(pole, at_pole, (-1) ** n * found - math.pi ** (n + 1) * total)


def _cotangent_derivative(n: int) -> list[int]:
    # The derivative of order n of cot(t) as a polynomial in cot(t), whose own derivative is -(1 + cot(t)^2).
    factors = [0, 1]
    for _ in range(n):
        first = [-i * factor for i, factor in enumerate(factors)][1:]
        factors = [low + high for low, high in zip([*first, 0, 0], [0, 0, *first], strict=True)]
    return factors


_MAX_ORDER = 1 << 10  # derivatives of a higher order are beyond all formats: 170! is the largest that float64 holds


@op(cast=Cast.KEEP, integers="float")
def polygamma_(input: Array, n):
    """`polygamma`, input first."""
    if isinstance(input, TracedArray):
        return polygamma_array(n, input), Saved(input=input)
    # In float64: below 0 the reflection subtracts terms many times larger than the result.
    return polygamma_array(n, input.astype(np.float64)).astype(input.dtype), Saved(input=input)


@polygamma_.check
def polygamma_check(input, n):
    if n < 0:
        raise ArgumentError("polygamma", "n from 0", f"{n}")
    if n > _MAX_ORDER:
        raise ArgumentError("polygamma", f"n up to {_MAX_ORDER}", f"{n}")


@polygamma_.backward
def polygamma_backward(dy, saved, needs, n):
    return dy * apply(polygamma_, saved.input, n=n + 1)


lgamma = unary(
    __name__,
    "lgamma",
    lgamma_array,
    lambda dy, x: dy * apply(polygamma_, x, n=0),
    "The logarithm of the absolute value of the gamma function; infinite at 0 and at negative integers.",
)


def polygamma(n: int, input: Tensor) -> Tensor:
    """The derivative of order n of `digamma`; infinite at 0 and at negative integers, for n from 1.

    Raises ArgumentError for a negative n.
    """
    return polygamma_(input, index(n))


def digamma(input: Tensor) -> Tensor:
    """The derivative of `lgamma`; -inf at 0, NaN at negative integers."""
    return polygamma_(input, 0)
