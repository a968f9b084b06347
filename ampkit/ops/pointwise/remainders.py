"""More arithmetic: sums of exponentials, remainders that keep the sign, numbers in place of NaN; other names."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import FLOATS, DType, bool_, finfo, float32, parse, promote
from ampkit.base.errors import DTypeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.cast_plan import result_type as agreed
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..indexing.masks import kept
from ..linalg import matmul
from ..shape import concatenation
from . import arithmetic, comparison, trigonometry, unary
from .arithmetic import _need_divisor
from .selection import clamp

__all__ = [
    "absolute", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "can_cast", "clamp_max",
    "clamp_min", "concatenate", "fix", "fmod", "ger", "get_default_dtype", "greater", "greater_equal", "is_complex",
    "is_floating_point", "is_tensor", "less", "less_equal", "logaddexp", "logaddexp2", "nan_to_num", "negative",
    "not_equal", "numel", "promote_types", "result_type", "rsub", "sgn",
]  # fmt: skip

_LN_2 = 0.6931471805599453

absolute, negative, fix, sgn = unary.abs, unary.neg, unary.trunc, unary.sign
arccos, arcsin, arctan, arctan2 = trigonometry.acos, trigonometry.asin, trigonometry.atan, arithmetic.atan2
arccosh, arcsinh, arctanh = trigonometry.acosh, trigonometry.asinh, trigonometry.atanh
greater, greater_equal, less, less_equal, not_equal = (
    comparison.gt,
    comparison.ge,
    comparison.lt,
    comparison.le,
    comparison.ne,
)
concatenate, ger = concatenation.cat, matmul.outer


@op(cast=Cast.WIDEST, integers="float", numpy=np.logaddexp)
def logaddexp(input: Array, other: Array):
    """log(exp(input) + exp(other)), broadcast: the larger one, and log1p of what the other one adds."""
    added = np.log1p(np.exp(-np.abs(_lead(input, other))))
    return np.maximum(input, other) + added, Saved(input=input, other=other)


@logaddexp.backward
def logaddexp_backward(dy, saved, needs):
    lead = _lead(saved.input, saved.other)
    return (
        dy * _logistic(lead) if needs[0] is not None else None,
        dy * _logistic(-lead) if needs[1] is not None else None,
    )


@op(cast=Cast.WIDEST, integers="float")
def logaddexp2(input: Array, other: Array):
    """log2(2^input + 2^other), broadcast; see logaddexp."""
    added = np.log1p(np.exp2(-np.abs(_lead(input, other)))) / _LN_2
    return np.maximum(input, other) + added, Saved(input=input, other=other)


@logaddexp2.backward
def logaddexp2_backward(dy, saved, needs):
    lead = _lead(saved.input, saved.other) * _LN_2
    return (
        dy * _logistic(lead) if needs[0] is not None else None,
        dy * _logistic(-lead) if needs[1] is not None else None,
    )


def _lead(input: Array, other: Array) -> Array:
    # input - other; of two equal infinities none leads
    a, b = plain(input), plain(other)
    return np.where((a == b) & np.isinf(a), 0, input - other)


def _logistic(x: Array) -> Array:
    positive = plain(x) > 0
    near = np.exp(np.where(positive, -x, x))
    return np.where(positive, 1, near) / (1 + near)


@op(cast=Cast.WIDEST)
def fmod(input: Array, other: Array):
    """input - other * trunc(input / other), broadcast: the sign is input's. Raises RangeError for an integer by 0."""
    _need_divisor("fmod", input, other)
    return np.fmod(input, other), Saved(input=input, other=other)


@fmod.backward(input="other", other="other")
def fmod_backward(dy, saved, needs):
    return dy, -dy * np.trunc(saved.input / saved.other) if needs[1] is not None else None


@op(cast=Cast.KEEP, moves=True)
def nan_to_num(input: Array, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None):
    """input with numbers in place of NaN and the infinities: by default 0 and the largest numbers of its dtype."""
    if input.dtype not in FLOATS:
        return input.copy(), Saved(input=input)
    limits, kind = finfo(input.dtype), input.dtype.type
    most, least = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    out = np.where(np.isnan(input), kind(0.0 if nan is None else nan), input)
    return np.where(out == np.inf, kind(most), np.where(out == -np.inf, kind(least), out)), Saved(input=input)


@nan_to_num.backward
def nan_to_num_backward(dy, saved, needs, nan, posinf, neginf):
    return kept(dy, np.isfinite(plain(saved.input)))


def clamp_min(input: Tensor, min: Tensor | float) -> Tensor:
    """input, but at least min (a number or a tensor); see `clamp`."""
    return clamp(input, min)


def clamp_max(input: Tensor, max: Tensor | float) -> Tensor:
    """input, but at most max (a number or a tensor); see `clamp`."""
    return clamp(input, max=max)


def rsub(input: Tensor | float, other: Tensor | float, *, alpha: float = 1) -> Tensor:
    """other - alpha * input, broadcast."""
    return arithmetic.sub(other, input, alpha=alpha)


def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()


def is_floating_point(input: Tensor) -> bool:
    """Whether the elements are floating-point numbers. Raises DTypeError for something that is no Tensor."""
    if not isinstance(input, Tensor):
        raise DTypeError("is_floating_point", "a Tensor", type(input).__name__)
    return input.is_floating_point()


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a Tensor."""
    return isinstance(obj, Tensor)


def is_complex(input: Tensor) -> bool:
    """False: there are no complex tensors."""
    return False


def get_default_dtype() -> DType:
    """float32, in which numbers with a point become tensors."""
    return float32


def promote_types(type1: Any, type2: Any) -> DType:
    """The narrowest dtype that holds values of both: what tensors with axes agree on."""
    return promote(parse(type1), parse(type2))


def can_cast(from_: Any, to: Any) -> bool:
    """Whether a change in place may round values of the one dtype to the other: no floats to integers, none to bool."""
    ranks = [2 if d in FLOATS else int(d != bool_) for d in map(parse, (from_, to))]
    return ranks[0] <= ranks[1]


def _plain(number: Any) -> type:
    return type(number.item() if isinstance(number, np.generic) else number)


def result_type(tensor1: Tensor | float, tensor2: Tensor | float) -> DType:
    """The dtype that two tensors or numbers agree on; a tensor without axes, or a number, only widens a lower kind."""
    return agreed(
        [(t.dtype if t.ndim else (t.dtype,)) if isinstance(t, Tensor) else _plain(t) for t in (tensor1, tensor2)]
    )
