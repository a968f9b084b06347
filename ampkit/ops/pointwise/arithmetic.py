"""Arithmetic of two and more operands: sums, products, quotients, powers.

Operands broadcast; where their dtypes differ they agree on the widest. A Python number takes the tensors' dtype: it is
rounded to it first, but beside 16-bit tensors a factor is not, as in PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import FLOATS, bool_
from ampkit.base.errors import ArgumentError, DTypeError
from ampkit.core.autograd.traced_array import TracedArray
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_values, integer_factor

__all__ = [
    "add", "addcdiv", "addcmul", "div", "divide", "floor_divide", "fmod", "lerp", "mul", "multiply", "remainder",
    "rsub", "sub", "subtract", "true_divide",
]  # fmt: skip


@op(cast=Cast.WIDEST, numpy=np.add)
def add(input: Array, other: Array, *, alpha: float = 1):
    """input + alpha * other, broadcast; bool with bool is `or`. Raises ShapeError if the shapes do not broadcast."""
    return input + (other if alpha == 1 else _scaled(alpha, input, other))


def _scaled(alpha: Any, input: Any, other: Any) -> Any:
    scaled = integer_factor("add and sub", "alpha", alpha, input, other) * other
    if all(getattr(a, "dtype", type(a)) in (bool_, bool) for a in (input, other)):
        return np.asarray(scaled, np.bool_, like=input if hasattr(input, "dtype") else other)
    return scaled


@add.backward
def add_backward(dy, saved, needs, alpha):
    return dy, dy if alpha == 1 else alpha * dy


@op(cast=Cast.WIDEST, numpy=np.subtract)
def sub(input: Array, other: Array, *, alpha: float = 1):
    """input - alpha * other, broadcast. Raises ShapeError if the shapes do not broadcast."""
    return input - (other if alpha == 1 else _scaled(alpha, input, other))


@sub.backward
def sub_backward(dy, saved, needs, alpha):
    return dy, (-alpha * dy if alpha != 1 else -dy) if needs[1] else None


@op(cast=Cast.WIDEST, numpy=np.multiply, factors="input other")
def mul(input: Array, other: Array):
    """input * other, broadcast. Raises ShapeError if the shapes do not broadcast."""
    return input * other, Saved(input=input, other=other)


@mul.backward(input="other", other="input")
def mul_backward(dy, saved, needs):
    return dy * saved.other if needs[0] else None, dy * saved.input if needs[1] else None


@op(cast=Cast.WIDEST, integers="float", numpy=np.true_divide, factors="other")
def div_(input: Array, other: Array):
    """input / other, broadcast; integers give the default dtype. Raises ShapeError if the shapes do not broadcast."""
    return input / other, Saved(input=input, other=other)


@div_.backward(input="other")
def div_backward(dy, saved, needs):
    share = dy / saved.other
    return share, -share * (saved.input / saved.other) if needs[1] else None


@op(cast=Cast.FP32, integers="float")
def rdiv(input: Array, other):
    """other / input for a number `other`, for `2 / x`: float32 in autocast, like `reciprocal`."""
    return other / input, Saved(input=input)


@rdiv.backward
def rdiv_backward(dy, saved, needs, other):
    return -(dy * other) / (saved.input * saved.input)


@op(cast=Cast.WIDEST, numpy=np.floor_divide, factors="other")
def floor_divide(input: Array, other: Array):
    """The quotient rounded down, broadcast; its gradient is zero. Raises RangeError for an integer by 0."""
    check_divisor("floor_divide", input, other)
    return np.floor_divide(input, other)


@op(cast=Cast.WIDEST, factors="other")
def trunc_divide(input: Array, other: Array):
    """The quotient rounded towards zero, broadcast (`div(rounding_mode="trunc")`); its gradient is zero."""
    check_divisor("trunc_divide", input, other)
    down = np.floor_divide(input, other)
    inexact = (down * other != input) & (down < 0)
    return down + inexact


def check_divisor(where: str, input: Any, other: Any) -> None:
    if all(getattr(a, "dtype", type(a)) in (bool_, bool) for a in (input, other)):
        raise DTypeError(where, "numbers", "bool", "cast it: x.int()")
    # Floats give inf and NaN; for integers NumPy returns 0.
    if any(isinstance(a, (float, TracedArray)) or getattr(a, "dtype", None) in FLOATS for a in (input, other)):
        return
    if not getattr(input, "size", 1):
        return
    divisor = other if hasattr(other, "dtype") else np.asarray(other)
    check_values(where, divisor, divisor == 0, "a divisor other than 0 for integers")


def _zero_gradients(dy, saved, needs):
    return np.zeros_like(dy), np.zeros_like(dy)


floor_divide.backward(_zero_gradients)
trunc_divide.backward(_zero_gradients)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other, broadcast: true division, or rounded (rounding_mode "floor" or "trunc").

    True division of integers gives the default dtype; a rounded division keeps the dtype.
    Raises ShapeError if the shapes do not broadcast, ArgumentError for another rounding_mode.
    """
    if rounding_mode is None:
        return div_(input, other)
    if rounding_mode not in ("floor", "trunc"):
        raise ArgumentError("div", "rounding_mode None, 'floor' or 'trunc'", repr(rounding_mode))
    return floor_divide(input, other) if rounding_mode == "floor" else trunc_divide(input, other)


@op(cast=Cast.WIDEST, numpy=np.remainder)
def remainder(input: Array, other: Array):
    """input - other * floor(input / other), broadcast: the sign is other's. Raises RangeError for an integer by 0."""
    check_divisor("remainder", input, other)
    return np.remainder(input, other), Saved(input=input, other=other)


@remainder.backward(input="other", other="other")
def remainder_backward(dy, saved, needs):
    return dy, -dy * np.floor_divide(saved.input, saved.other) if needs[1] else None


@op(cast=Cast.WIDEST, factors="weight")
def lerp(input: Array, end: Array, weight: Array):
    """input + weight * (end - input), broadcast."""
    return input + weight * (end - input), Saved(input=input, end=end, weight=weight)


@lerp.backward(input="weight", end="weight", weight="input end")
def lerp_backward(dy, saved, needs):
    return (
        dy * (1 - saved.weight) if needs[0] else None,
        dy * saved.weight if needs[1] else None,
        dy * (saved.end - saved.input) if needs[2] else None,
    )


@op(cast=Cast.WIDEST)
def addcmul(input: Array, tensor1: Array, tensor2: Array, *, value: float = 1):
    """input + value * tensor1 * tensor2, broadcast, rounded once."""
    value = integer_factor("addcmul", "value", value, input, tensor1, tensor2)
    return input + value * (tensor1 * tensor2), Saved(tensor1=tensor1, tensor2=tensor2)


@addcmul.backward(tensor1="tensor2", tensor2="tensor1")
def addcmul_backward(dy, saved, needs, value):
    return dy, value * dy * saved.tensor2 if needs[1] else None, value * dy * saved.tensor1 if needs[2] else None


@op(cast=Cast.WIDEST, integers="refuse")
def addcdiv(input: Array, tensor1: Array, tensor2: Array, *, value: float = 1):
    """input + value * tensor1 / tensor2, broadcast, rounded once."""
    return input + value * (tensor1 / tensor2), Saved(tensor1=tensor1, tensor2=tensor2)


@addcdiv.check
def addcdiv_check(input, tensor1, tensor2, value):
    if isinstance(tensor2, (int, float)) and isinstance(tensor1, (int, float)) and not tensor2:
        raise ArgumentError("addcdiv", "a number other than 0 as tensor2", f"{tensor2}")


@addcdiv.backward(tensor1="tensor2", tensor2="tensor1 tensor2")
def addcdiv_backward(dy, saved, needs, value):
    share: Any = value * dy / saved.tensor2 if needs[1] or needs[2] else None
    return dy, share, -share * (saved.tensor1 / saved.tensor2) if needs[2] else None


multiply, divide, true_divide, subtract = mul, div, div, sub


@op(cast=Cast.WIDEST)
def fmod(input: Array, other: Array):
    """input - other * trunc(input / other), broadcast: the sign is input's. Raises RangeError for an integer by 0."""
    check_divisor("fmod", input, other)
    return np.fmod(input, other), Saved(input=input, other=other)


@fmod.backward(input="other", other="other")
def fmod_backward(dy, saved, needs):
    return dy, -dy * np.trunc(saved.input / saved.other) if needs[1] is not None else None


def rsub(input: Tensor | float, other: Tensor | float, *, alpha: float = 1) -> Tensor:
    """other - alpha * input, broadcast."""
    return sub(other, input, alpha=alpha)
