"""Functions with random numbers in them: dropout that keeps a distribution, random slopes, samples of classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.dtypes import is_float
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core import random
from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..creation.factories import ones, tensor
from ..creation.like import zeros_like
from ..indexing.scatter import scatter
from ..pointwise.activation import leaky_relu
from ..pointwise.comparison import gt, ne
from ..pointwise.selection import where
from ..shape.axes import axis
from .dropout import dropout_
from .softmax import softmax

__all__ = ["alpha_dropout", "feature_alpha_dropout", "gumbel_softmax", "rrelu"]

# What selu makes of a very negative number: minus its scale times its alpha (Klambauer et al. 2017, eq. 14).
_LEAST = -1.0507009873554805 * 1.6732632423543772


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: CompatArg = False) -> Tensor:
    """Set each element to selu's least value with probability `p`, then scale and shift: mean 0 and variance 1 stay.

    input [...] -> [...]; the input itself if not `training`. Draws as `dropout`. `inplace` is taken for PyTorch's sake:
    the answer is new memory all the same. Raises ArgumentError for a probability outside [0, 1].
    Klambauer et al. 2017, arXiv:1706.02515, sec. "New dropout technique".
    """
    return _dropped("alpha_dropout", input, p, training, input.shape)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: CompatArg = False) -> Tensor:
    """`alpha_dropout` of whole channels: input [N, C, ...] -> the same.

    Raises ShapeError for fewer than two axes where something is dropped.
    """
    if training and p and input.ndim < 2:
        raise ShapeError("feature_alpha_dropout", "input [N, C, ...]", f"shape {tuple(input.shape)}")
    return _dropped("feature_alpha_dropout", input, p, training, (*input.shape[:2], *(1,) * (input.ndim - 2)))


def _dropped(where: str, input: Tensor, p: float, training: bool, shape: Any) -> Tensor:
    if not 0 <= p <= 1:
        raise ArgumentError(where, "a probability p from 0 to 1", f"{p}")
    if not training or p == 0:
        return input
    keep = ne(dropout_(ones(shape, device=input.device), p, *random.default.take()), 0)
    return alpha_masked(input, keep, p)


@op(cast=Cast.KEEP, integers="float")
def alpha_masked(input: Array, keep: Index, p):
    """`alpha_dropout` by a mask that broadcasts."""
    scale = _scale(p)
    mask = plain(keep)
    # A product, so that NaN stays NaN.
    out = input * mask.astype(input.dtype) * scale
    return out + np.where(mask, -scale * _LEAST * p, scale * _LEAST * (1 - p)).astype(out.dtype), Saved(keep=keep)


def _scale(p: float) -> float:
    return 0.0 if p == 1 else 1 / math.sqrt((1 - p) * (1 + p * _LEAST * _LEAST))


@alpha_masked.backward
def alpha_masked_backward(dy, saved, needs, p):
    return dy * plain(saved.keep).astype(dy.dtype) * _scale(p)


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: CompatArg = False
) -> Tensor:
    """x above 0, else a slope times x: drawn for each element from [lower, upper) in training, else their mean.

    input [...] -> [...]. `inplace=True` writes the answer into input.
    Raises ArgumentError unless lower <= upper, DTypeError for integers.
    Xu, Wang, Chen, Li 2015, arXiv:1505.00853, sec. 2.4.
    """
    if not -math.inf < lower <= upper < math.inf:
        raise ArgumentError("rrelu", "finite lower <= upper", f"{lower} and {upper}")
    _need_float("rrelu", input)
    if not training:
        return leaky_relu(input, (lower + upper) / 2)
    drawn = random.generator(*random.default.take()).uniform(lower, upper, input.shape)
    return where(gt(input, 0), input, input * tensor(drawn, input.dtype, input.device))


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A sample of the classes along `dim`, by the probabilities softmax(logits), that can be differentiated.

    logits [...] -> [...]: the softmax, at the temperature tau, of logits with Gumbel noise; with `hard` the largest as
    1 and the others as 0, with the gradient of the softmax. eps is PyTorch's, and changes nothing.
    Raises ArgumentError for a tau that is not positive, RangeError for a `dim` out of range, DTypeError for integers.
    Jang, Gu, Poole 2017, arXiv:1611.01144, eq. 2; Maddison, Mnih, Teh 2017, arXiv:1611.00712.
    """
    at = axis("gumbel_softmax", dim, logits.ndim)
    if not tau > 0:
        raise ArgumentError("gumbel_softmax", "a positive tau", f"{tau}")
    _need_float("gumbel_softmax", logits)
    drawn = random.generator(*random.default.take()).gumbel(size=logits.shape)
    soft = softmax((logits + tensor(drawn, logits.dtype, logits.device)) / tau, at)
    if not hard:
        return soft
    largest = soft.detach().argmax(at, keepdim=True)
    return scatter(zeros_like(soft), at, largest, 1.0) - soft.detach() + soft


def _need_float(where: str, input: Tensor) -> None:
    if not is_float(input.array.dtype):
        raise DTypeError(where, "a floating-point tensor", input.array.dtype.name, "cast it with .float()")
