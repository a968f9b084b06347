"""The normal distribution's quantile and the logarithm of its cumulative function, which NumPy and CuPy have not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.core.autograd.traced_array import apply, plain

from .elementwise import unary
from .error_function import erfc, erfc_array, exp_minus_square, quantile_of_tail, scaled_erfc

__all__: list[str] = []  # `ampkit.special` has the names


def log_ndtr_array(x: Any) -> Any:
    """log((1 + erf(x / sqrt(2))) / 2), element by element: also where that is 0 in the dtype."""
    y = x * -math.sqrt(0.5)
    far = y > 0.46875
    z = np.where(far, y, 0.5)
    tail = np.log(scaled_erfc(z) / 2) - z * z
    near = np.log1p(-erfc_array(np.where(far, 0, -y)) / 2)
    return np.where(x == -np.inf, -np.inf, np.where(far, tail, near))


def ndtri_array(p: Any) -> Any:
    """The x with ndtr(x) = p, element by element: infinite at 0 and 1, NaN beyond."""
    lower = np.minimum(p, 1 - p)
    inside = (p > 0) & (p < 1)
    found = np.copysign(quantile_of_tail(np.where(inside, lower, 0.25)), p - 0.5)
    return np.where(inside, found, np.where(p == 0, -np.inf, np.where(p == 1, np.inf, p * np.nan)))


def _inverse_mills_ratio(x: Any) -> Any:
    # The density over the distribution function: far below 0 by exp(y^2) erfc(y), where both of them are 0.
    y = x * -math.sqrt(0.5)
    far = plain(y) > 0.46875
    below, above = np.where(far, y, 0.5), np.where(far, 0, y)
    density = exp_minus_square(np.minimum(np.where(far, 0, x), 56.0), 0.5)  # 0 beyond, in float64, too
    near = density / apply(erfc, above)
    return math.sqrt(2 / math.pi) * np.where(far, 1 / scaled_erfc(below), near)


log_ndtr: Any = unary(
    __name__,
    "log_ndtr",
    log_ndtr_array,
    lambda dy, x: dy * _inverse_mills_ratio(x),
    "The logarithm of `ndtr`, precise far below 0, where ndtr itself is 0.",
)
ndtri = unary(
    __name__,
    "ndtri",
    ndtri_array,
    lambda dy, x: dy * (np.exp(x * x / 2) * math.sqrt(2 * math.pi)),
    "The number whose `ndtr` is input; infinite at 0 and 1, NaN beyond. M. J. Wichura 1988, Algorithm AS 241.",
    saves="out",
)
