"""Comparisons, logical and bitwise ops. Results are bool (bitwise: integers) and have no gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import NARROW, float32
from ampkit.base.errors import ArgumentError, DTypeError
from ampkit.core.op import Array, Op, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..named import named
from .formats import cast_to

__all__ = [
    "allclose", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "eq", "equal", "gcd", "ge", "greater", "greater_equal", "gt", "isclose", "isfinite", "isinf", "isnan", "isneginf",
    "isposinf", "isreal", "lcm", "le", "less", "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor",
    "lt", "ne", "not_equal",
]  # fmt: skip


def _binary(name: str, function: Any, meaning: str) -> Op:
    @op(cast=Cast.WIDEST, moves=True, numpy=function)
    @named(name, f"{meaning}; broadcast: [...], [...] -> [...].")
    def made(input: Array, other: Array):
        return function(input, other)

    return made


def _unary(name: str, function: Any, meaning: str) -> Op:
    @op(cast=Cast.WIDEST, moves=True, numpy=function)
    @named(name, f"{meaning}: [...] -> [...].")
    def made(input: Array):
        return function(input)

    return made


def _require_integers(made: Op) -> Op:
    def check(*arrays: Any) -> None:
        for array in arrays:
            if dtypes.is_float(getattr(array, "dtype", dtypes.int64)) or isinstance(array, float):
                got = array.dtype.name if hasattr(array, "dtype") else "a float"
                raise DTypeError(made.name, "integers or bool", got)

    made.check(check)
    return made


eq = _binary("eq", np.equal, "Whether input equals other, as bool")
ne = _binary("ne", np.not_equal, "Whether input differs from other, as bool")
lt = _binary("lt", np.less, "Whether input is less than other, as bool")
le = _binary("le", np.less_equal, "Whether input is at most other, as bool")
gt = _binary("gt", np.greater, "Whether input is greater than other, as bool")
ge = _binary("ge", np.greater_equal, "Whether input is at least other, as bool")
logical_and = _binary("logical_and", np.logical_and, "Whether both are true (not 0), as bool")
logical_or = _binary("logical_or", np.logical_or, "Whether one of them is true (not 0), as bool")
logical_xor = _binary("logical_xor", np.logical_xor, "Whether exactly one is true (not 0), as bool")
logical_not = _unary("logical_not", np.logical_not, "Whether input is false (0), as bool")
bitwise_and = _require_integers(_binary("bitwise_and", np.bitwise_and, "The bits set in both, of integers or bool"))
bitwise_or = _require_integers(_binary("bitwise_or", np.bitwise_or, "The bits set in either, of integers or bool"))
bitwise_xor = _require_integers(
    _binary("bitwise_xor", np.bitwise_xor, "The bits set in one alone, of integers or bool")
)
bitwise_not = _require_integers(_unary("bitwise_not", np.invert, "The bitwise complement, of integers or bool"))
bitwise_left_shift = _require_integers(
    _binary("bitwise_left_shift", np.left_shift, "input times 2 to the power other, of integers")
)
bitwise_right_shift = _require_integers(
    _binary("bitwise_right_shift", np.right_shift, "input over 2 to the power other, rounded down, of integers")
)
gcd = _require_integers(_binary("gcd", np.gcd, "The greatest common divisor, of integers"))
lcm = _require_integers(_binary("lcm", np.lcm, "The least common multiple, of integers"))
isnan = _unary("isnan", np.isnan, "Whether an element is NaN, as bool")
isinf = _unary("isinf", np.isinf, "Whether an element is infinite, as bool")
isfinite = _unary("isfinite", np.isfinite, "Whether an element is a finite number, as bool")
isposinf = _unary("isposinf", lambda input: input == np.inf, "Whether an element is plus infinity, as bool")
isneginf = _unary("isneginf", lambda input: input == -np.inf, "Whether an element is minus infinity, as bool")
isreal = _unary("isreal", lambda input: np.ones_like(input, np.bool_), "True: there are no complex numbers")


@op(cast=Cast.WIDEST)
def isclose(input: Array, other: Array, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether |input - other| <= atol + rtol * |other|, as bool; broadcast. NaN is close to NaN with equal_nan.

    Raises ArgumentError for a negative tolerance.
    """
    return np.isclose(input, other, rtol, atol, equal_nan)


@isclose.check
def isclose_check(input, other, rtol, atol, equal_nan):
    if rtol < 0 or atol < 0:
        raise ArgumentError("isclose", "rtol and atol from 0", f"rtol={rtol}, atol={atol}")


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all elements are close (see `isclose`); waits for the device."""
    return bool(isclose(input, other, rtol, atol, equal_nan).array.all())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have equal shapes and values; waits for the device."""
    if getattr(input, "shape", None) == getattr(other, "shape", ()) and input.array.dtype in NARROW:
        return input.dtype == other.dtype and equal(cast_to(input, float32), cast_to(other, float32))
    return input.shape == other.shape and bool(eq(input, other).array.all())


greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne
