"""The regularized incomplete gamma functions, the derivative of gamma draws, and modified Bessel functions.

P(a, x) and its derivative by a are integrals of one sign over the smaller tail, or a series for small a and x: no
terms cancel. In float64 within, whatever the dtype.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ampkit.base.errors import StateError
from ampkit.core.autograd.traced_array import TracedArray, apply, plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

from ..named import named
from .elementwise import unary
from .gamma_function import lgamma_array, polygamma_array

__all__ = ["i0"]

_DEPTH = 40.0  # exp(-40) of the largest value of an integrand is beyond float64
_SMALL = 8.0  # the series has 64 terms, enough for x up to it


@cache
def _rule() -> list[tuple[float, float]]:
    # Nodes and weights. NumPy loads its polynomials when they are first asked for.
    nodes, weights = np.polynomial.legendre.leggauss(48)
    return list(zip(nodes.tolist(), weights.tolist(), strict=True))


def gamma_tails(a: Any, x: Any) -> tuple[Any, Any, Any]:
    """(I, J, lower) of arrays of float64 above 0, of one shape, with p the density of gamma(a) at x.

    lower: whether the tail is P, not Q = 1 - P. I: the tail / (x p). J: -dP/da / (x p), the derivative by a of log z
    along the curve of constant P(a, z) through x.
    """
    lower = x < np.maximum(a, 2)
    series = lower & ((a < _SMALL) | (x < 2))
    log_x = np.log(x) - polygamma_array(0, a)
    few, few_slope = _series(np.where(series, a, 1.0), np.where(series, x, 1.0), polygamma_array(0, a))
    far, far_slope = _quadrature(np.where(series, 1.0, a), np.where(series, 4.0, x), lower & ~series, log_x)
    return np.where(series, few, far), np.where(series, few_slope, far_slope), lower


def _series(a: Any, x: Any, digamma: Any) -> tuple[Any, Any]:
    # P / (x p) = the sum of x^k / (a (a + 1) .. (a + k)): DLMF 8.7.1, and its derivative by a.
    term, psi, log_x = 1 / a, digamma + 1 / a, np.log(x)
    total, slope = term, term * (psi - log_x)
    for k in range(1, 64):
        term = term * x / (a + k)
        psi = psi + 1 / (a + k)
        total, slope = total + term, slope + term * (psi - log_x)
    return total, slope


def _quadrature(a: Any, x: Any, lower: Any, log_x: Any) -> tuple[Any, Any]:
    # The integral of (t / x)^(a - 1) exp(x - t) dt / x over t = x (1 + u) from x on, or of u below 0 (lower), by Gauss
    # and Legendre's rule up to a bound where the integrand is below exp(-40): from log(1 + u) <= u - u^2 / (2 + 2 u)
    # above and log(1 - u) <= -u - u^2 / 2 below.
    b = np.maximum(a - 1, 0)
    away, half = x - b, x - b + b / 2
    root = np.sqrt((away - _DEPTH) ** 2 + 4 * _DEPTH * half)
    above = (_DEPTH - away + root) / (2 * half)
    below = np.minimum(2 * _DEPTH / (np.sqrt(away * away + 2 * _DEPTH * b) - away), 1)
    sign = np.where(lower, -1.0, 1.0)
    width = np.where(lower, below, above) / 2
    total = slope = 0.0
    for node, weight in _rule():
        u = sign * width * (1 + node)
        log = np.log1p(u)
        value = weight * np.exp((a - 1) * log - x * u)
        total, slope = total + value, slope + value * (log_x + log)
    return width * total, sign * width * slope


def _as_arrays(a: Any, x: Any) -> Any:
    # One of them may be a number.
    if not hasattr(a, "dtype"):
        return np.full_like(x, a), x
    return (a, x) if hasattr(x, "dtype") else (a, np.full_like(a, x))


def _need_first(where: str, *arrays: Any) -> None:
    if any(isinstance(a, TracedArray) for a in arrays):
        raise StateError(where, "a first derivative", "a second one")


def _prepared(a: Any, x: Any) -> tuple[Any, Any, Any]:
    # In float64, with 1 where a or x is not a finite number above 0; and where that is.
    a, x = np.broadcast_arrays(a.astype(np.float64), x.astype(np.float64))
    other = ~((a > 0) & (x > 0) & (a < np.inf) & (x < np.inf))
    return np.where(other, 1, a), np.where(other, 1, x), other


def _incomplete(a: Any, x: Any, upper: bool) -> Any:
    a1, x1, other = _prepared(a, x)
    tail, _, lower = gamma_tails(a1, x1)
    share = tail * np.exp(a1 * np.log(x1) - x1 - lgamma_array(a1))
    found = np.where(lower != upper, share, 1 - share)
    none, all_ = (1.0, 0.0) if upper else (0.0, 1.0)
    a, x = np.broadcast_arrays(a, x)
    at_edge = np.where((x == 0) & (a > 0), none, np.where((a == 0) & (x > 0), all_, np.nan))
    at_edge = np.where((x == np.inf) & (a >= 0) & (a < np.inf), all_, at_edge)
    return np.where(other, np.where((a == np.inf) & (x >= 0) & (x < np.inf), none, at_edge), found)


def _incomplete_gamma(name: str, upper: bool, doc: str) -> Any:
    @op(cast=Cast.WIDEST, integers="float")
    @named(name, doc)
    def made(input: Array, other: Array):
        _need_first(name, input, other)
        a, x = _as_arrays(input, other)
        return _incomplete(a, x, upper).astype(a.dtype), Saved(input=input, other=other)

    @made.backward
    def backward(dy, saved, needs):
        _need_first(name, saved.input, saved.other)
        a, x, outside = _prepared(*_as_arrays(saved.input, saved.other))
        density = np.exp((a - 1) * np.log(x) - x - lgamma_array(a)) * (-1 if upper else 1)
        dy = np.where(outside, np.where(dy == 0, 0, np.nan), dy)
        by_a = -dy * density * x * gamma_tails(a, x)[1] if needs[0] is not None else None
        return by_a, dy * density

    return made


gammainc = _incomplete_gamma(
    "gammainc",
    False,
    """The regularized lower incomplete gamma function P(input, other), for numbers from 0.

    The integral of t^(a-1) exp(-t) / gamma(a) up to other, a = input. Differentiable in both.
    """,
)
gammaincc = _incomplete_gamma(
    "gammaincc",
    True,
    "The regularized upper incomplete gamma function 1 - P(input, other), precise also where it is small.",
)


def log_draw_slope(a: Any, log_z: Any) -> Any:
    """d log z / da of draws z from gamma(a), of their logarithms, at a constant share P(a, z); arrays of float64.

    -dP/da / (z p): Figurnov, Mohamed and Mnih 2018, arXiv:1805.08498, eq. 5.
    """
    tiny = log_z < -600  # below it z = (P gamma(a + 1))^(1 / a) but for terms beyond float64
    slope = gamma_tails(a, np.exp(np.where(tiny, 0, log_z)))[1]
    return np.where(tiny, (polygamma_array(0, a + 1) - log_z) / a, slope)


def _bessel_array(n: int, x: Any) -> Any:
    # exp(-|x|) I_n(|x|): the power series, DLMF 10.25.2, up to 30, and beyond Hankel's expansion, 10.40.1.
    y = np.abs(x)
    near, far = np.minimum(y, 30), np.maximum(y, 30)
    square = near * near / 4
    term = near * 0 + 1 if n == 0 else near / 2
    total = term
    for k in range(1, 70):
        term = term * square / (k * (k + n))
        total = total + term
    term = total_far = far * 0 + 1
    for k in range(1, 25):
        term = term * -(4 * n * n - (2 * k - 1) ** 2) / (8 * k * far)
        total_far = total_far + term
    found = np.where(y < 30, total * np.exp(-near), total_far / np.sqrt(2 * math.pi * far))
    found = np.where(y == np.inf, 0, np.where(np.isnan(y), y, found))
    return np.where(x < 0, -found, found) if n else found


def _growing(n: int, x: Any) -> Any:
    return _bessel_array(n, x) * np.exp(np.abs(x))


def _i1_by_x(x: Any) -> Any:
    # I_1(x) exp(-|x|) / x, 1 / 2 at 0.
    zero = plain(x) == 0
    return np.where(zero, 0.5, apply(i1e, x) / np.where(zero, 1, x))


def _bessel(name: str, array: Any, vjp: Any, doc: str) -> Any:
    return unary(__name__, name, array, vjp, doc)


i0e: Any = _bessel(
    "i0e",
    lambda x: _bessel_array(0, x),
    lambda dy, x: dy * (apply(i1e, x) - np.sign(x) * apply(i0e, x)),
    "exp(-|input|) times the modified Bessel function of order 0.",
)
i1e: Any = _bessel(
    "i1e",
    lambda x: _bessel_array(1, x),
    lambda dy, x: dy * (apply(i0e, x) - _i1_by_x(x) - np.sign(x) * apply(i1e, x)),
    "exp(-|input|) times the modified Bessel function of order 1.",
)
i0: Any = _bessel(
    "i0",
    lambda x: _growing(0, x),
    lambda dy, x: dy * apply(i1, x),
    "The modified Bessel function of the first kind of order 0.",
)
i1: Any = _bessel(
    "i1",
    lambda x: _growing(1, x),
    lambda dy, x: dy * (apply(i0, x) - _i1_by_x(x) * np.exp(np.abs(x))),
    "The modified Bessel function of the first kind of order 1.",
)
