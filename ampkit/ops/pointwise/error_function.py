"""erf, erfc and erfinv, and the rational approximations that compute them: NumPy and CuPy have none."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ampkit.core.policy import Cast

from .elementwise import unary

__all__ = ["erf", "erfc", "erfinv"]


# Up to float32: erf(x) ~ x P(x^2) / Q(x^2) on |x| <= 4; beyond, erf is 1 to within half a unit of float32. From the
# highest power down; least squares for the relative error over 4000 Chebyshev nodes, weights raised where the error was
# largest: 2.5e-8 before rounding.
_LIMIT = 4.0
_P = (1.9867933494732522e-06, 0.00028456433613772134, 0.003883277490174514, 0.05310154125287453, 0.1935435197976836,
      1.1283791393265272)  # fmt: skip

_Q = (3.742020701874136e-05, 0.001185554872354076, 0.015207118364355154, 0.11534936172617087, 0.5048560344680696, 1.0)


# float64: W. J. Cody 1969, Rational Chebyshev approximations for the error function, Math. Comp. 23, 631-637.
# A / B: erf(x) / x in x^2, |x| < 0.46875. C / D: exp(x^2) erfc(x), up to 6, where erf is 1.
_A = (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
      3.20937758913846947e3)  # fmt: skip

_B = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_C = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
      2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
      1.23033935479799725e3)  # fmt: skip

_D = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
      3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)  # fmt: skip


# Beyond 4, from the same paper: sqrt(pi) y exp(y^2) erfc(y) in 1 / y^2.
_P_FAR = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
          1.60837851487422766e-2, 6.58749161529837803e-4)  # fmt: skip

_Q_FAR = (1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2,
          2.33520497626869185e-3)  # fmt: skip


# The inverse: M. J. Wichura 1988, Algorithm AS 241, Applied Statistics 37, 477-484, whose quantile of the normal
# distribution at (1 + x) / 2 is sqrt(2) times as large. E / F: of x in 0.180625 - x^2 / 4, |x| <= 0.85. Beyond, with
# r = sqrt(-log((1 - |x|) / 2)): G / H in r - 1.6, r <= 5, and I / J in r - 5.
_E = (2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987, 13731.69376550946,
      1971.5909503065513, 133.14166789178438, 3.3871328727963665)  # fmt: skip

_F = (5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597, 5394.196021424751,
      687.1870074920579, 42.31333070160091, 1.0)  # fmt: skip

_G = (0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684, 3.6478483247632045,
      5.769497221460691, 4.630337846156546, 1.4234371107496835)  # fmt: skip

_H = (1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008, 0.6897673349851,
      1.6763848301838038, 2.053191626637759, 1.0)  # fmt: skip

_I = (2.0103343992922881e-07, 2.7115555687434876e-05, 0.0012426609473880784, 0.026532189526576124,
      0.29656057182850487, 1.7848265399172913, 5.463784911164114, 6.657904643501103)  # fmt: skip

_J = (2.0442631033899397e-15, 1.421511758316446e-07, 1.8463183175100548e-05, 0.0007868691311456133,
      0.014875361290850615, 0.1369298809227358, 0.599832206555888, 1.0)  # fmt: skip


def erf_array(x: Any) -> Any:
    """erf(x), element by element: within 6 units of the last place of float32, 4 eps of float64."""
    return _erf_float32(x) if x.dtype.itemsize < 8 else _erf_float64(x)


def _erf_float32(x: Any) -> Any:
    y = np.clip(x, -_LIMIT, _LIMIT)
    t = y * y
    y *= _polynomial(_P, t)
    y /= _polynomial(_Q, t)
    return np.clip(y, -1, 1)


def _erf_float64(x: Any) -> Any:
    y = np.minimum(np.abs(x), 6)
    t = y * y
    near = x * (_polynomial(_A, t) / _polynomial(_B, t))
    far = 1 - np.exp(-t) * (_polynomial(_C, y) / _polynomial(_D, y))
    return np.where(y < 0.46875, near, np.copysign(far, x))


def erfc_array(x: Any) -> Any:
    """1 - erf(x), element by element, with small relative error also for large x; within 20 eps."""
    y = np.abs(x)
    near = 1 - erf_array(x)
    y = np.minimum(np.maximum(y, 0.46875), 30)  # the domain of the formulas below; at 30 erfc is 0 in every dtype
    tail = scaled_erfc(y) * exp_minus_square(y)
    return np.where(np.abs(x) < 0.46875, near, np.where(x < 0, 2 - tail, np.where(np.isnan(x), x, tail)))


def scaled_erfc(y: Any) -> Any:
    """exp(y^2) erfc(y) for y from 0.46875, element by element."""
    near = np.minimum(y, 4.0)
    t = 1 / (y * y)
    far = (1 / math.sqrt(math.pi) - t * (_polynomial(_P_FAR, t) / _polynomial(_Q_FAR, t))) / y
    return np.where(y > 4, far, _polynomial(_C, near) / _polynomial(_D, near))


def exp_minus_square(y: Any, share: float = 1.0) -> Any:
    """exp(-share y^2) of finite y, which is split in two, so that the rounding of y^2 is not magnified."""
    coarse = np.trunc(y * 16) / 16
    return np.exp(-share * coarse * coarse) * np.exp(-share * (y - coarse) * (y + coarse))


def erfinv_array(x: Any) -> Any:
    """The y with erf(y) = x, element by element: infinite at -1 and 1, NaN beyond; within 8 eps."""
    half = x / 2
    middle = half * half
    middle = np.maximum(0.180625 - middle, 0)
    near = half * (_polynomial(_E, middle) / _polynomial(_F, middle))
    size = np.abs(x)
    far = _far_quantile(np.where(size < 1, (1 - size) / 2, 0.25))
    far = np.where(size == 1, np.inf, np.where(size < 1, far, np.nan))
    return math.sqrt(0.5) * np.where(size <= 0.85, near, np.copysign(far, x))


def quantile_of_tail(p: Any) -> Any:
    """The x from 0 on beyond which the normal distribution has p, of (0, 0.5], element by element."""
    half = 0.5 - p
    middle = np.maximum(0.180625 - half * half, 0)
    near = half * (_polynomial(_E, middle) / _polynomial(_F, middle))
    return np.where(half <= 0.425, near, _far_quantile(p))


def _far_quantile(p: Any) -> Any:
    r = np.sqrt(-np.log(p))
    a, b = r - 1.6, r - 5
    return np.where(r <= 5, _polynomial(_G, a) / _polynomial(_H, a), _polynomial(_I, b) / _polynomial(_J, b))


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    total = coefficients[0] * x  # Horner's rule, in place
    total += coefficients[1]
    for coefficient in coefficients[2:]:
        total *= x
        total += coefficient
    return total


_unary = partial(unary, __name__)
_SLOPE = 2 / math.sqrt(math.pi)  # of erf at 0
erf = _unary(
    "erf",
    erf_array,
    lambda dy, x: dy * (_SLOPE * np.exp(-x * x)),
    """The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to input.

    Within 6 units of the last place in float32, 4 eps in float64.
    """,
)
erfc = _unary(
    "erfc",
    erfc_array,
    lambda dy, x: dy * (-_SLOPE * np.exp(-x * x)),
    "1 - erf(input), precise where erf is nearly 1. W. J. Cody 1969, Math. Comp. 23, 631-637.",
)
erfinv = _unary(
    "erfinv",
    erfinv_array,
    lambda dy, y: dy * (np.exp(y * y) / _SLOPE),
    """The number whose error function is input; infinite at -1 and 1, NaN beyond. In float32.

    M. J. Wichura 1988, Algorithm AS 241, Applied Statistics 37, 477-484.
    """,
    Cast.FP32,
    saves="out",
)
