"""Dropout, alpha dropout and randomized leaky ReLU, by draws of the counter-based stream of `core/random.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core import random
from ampkit.core.autograd.traced_array import plain
from ampkit.core.dispatch import primitive
from ampkit.core.dispatch.batching.draws import of_samples
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_floating
from ..creation.constants import ones
from ..creation.draw_ranges import rounded_within
from ..named import named
from ..pointwise.comparison import gt, ne
from ..pointwise.piecewise_activations import leaky_relu
from ..pointwise.selection import where

__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout", "rrelu"]


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: CompatArg = False) -> Tensor:
    """Zero each element with probability `p`, and multiply the others by 1 / (1 - p).

    input [...] -> [...]; the input itself if not `training`. Drawn from the default stream, with `p` rounded to a
    multiple of 2^-16. `inplace=True` writes the result into input.
    Raises ArgumentError for a probability outside [0, 1].
    Srivastava et al. 2014, JMLR 15.
    """
    need_probability("dropout", p)
    if not training or p == 0:
        return input
    seed, call = random.default.take(input.array)
    return dropout_(input, p, seed, call)


def need_probability(where: str, p: float, name: str = "p") -> None:
    """Raise ArgumentError for a probability outside [0, 1]."""
    if not 0 <= p <= 1:
        raise ArgumentError(where, f"a probability {name} from 0 to 1", f"{p}")


def _channel_dropout(name: str, ranks: tuple[int, ...], shapes: str) -> Any:
    # Dropout of whole channels for inputs with those numbers of axes: one mask value per sample and channel.
    doc = f"""`dropout` of whole channels: input {shapes} -> the same.

    Raises ArgumentError for a probability outside [0, 1], ShapeError for other shapes.
    Tompson et al. 2014, arXiv:1411.4280, sec. 3.2.
    """

    @named(name, doc)
    def dropout_channels(input: Tensor, p: float = 0.5, training: bool = True, inplace: CompatArg = False) -> Tensor:
        need_probability(name, p)
        if input.ndim not in ranks:
            raise ShapeError(name, f"input {shapes}", f"shape {tuple(input.shape)}")
        if not training or p == 0:
            return input
        lead = input.ndim - (ranks[-1] - 2)
        return dropout_(input, p, *random.default.take(input.array), (*input.shape[:lead], *(1,) * (input.ndim - lead)))

    return dropout_channels


dropout1d = _channel_dropout("dropout1d", (2, 3), "[N, C, L] or [C, L]")
dropout2d = _channel_dropout("dropout2d", (3, 4), "[N, C, H, W] or [C, H, W]")
dropout3d = _channel_dropout("dropout3d", (4, 5), "[N, C, D, H, W] or [C, D, H, W]")


@primitive("nn.dropout", name="dropout_mask")
def mask(like: Array, p: float, seed: int, call: int, shape: tuple[int, ...]) -> Array:
    """The keep mask, booleans on the device of `like`: a function of the draw (seed, call), equal on every device."""
    return backends.backend_of(like).asarray(random.keep_mask(seed, call, p, shape))


@op(cast=Cast.KEEP, integers="refuse")
def dropout_(input: Array, p, seed, call, shape=None):
    """`dropout` by the draw (seed, call), which is deterministic. shape: of the mask, by default the input's."""
    keep = mask(input, p, seed, call, shape or input.shape)
    return apply_mask(input, keep, p), Saved(keep=keep)


@dropout_.backward
def dropout_backward(dy, saved, needs, p, seed, call, shape):
    return apply_mask(dy, saved.keep, p)


def apply_mask(values: Any, keep: Any, p: float) -> Any:
    """values * keep / (1 - p): a product, so that NaN stays NaN."""
    out = values * keep
    out *= dropout_scale(p)
    return out


def dropout_scale(p: float) -> float:
    """1 / (1 - p), the factor of the elements that dropout keeps; 0 for p = 1."""
    return 0.0 if p == 1 else 1 / (1 - p)


# The infimum of selu: minus its scale times its alpha (Klambauer et al. 2017, eq. 14).
_SELU_MIN = -1.0507009873554805 * 1.6732632423543772


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: CompatArg = False) -> Tensor:
    """Set each element to selu's infimum with probability `p`, then scale and shift to keep mean 0 and variance 1.

    input [...] -> [...]; the input itself if not `training`. Draws as `dropout`. `inplace` changes nothing: the result
    is new memory. Raises ArgumentError for a probability outside [0, 1].
    Klambauer et al. 2017, arXiv:1706.02515, sec. "New dropout technique".
    """
    return _alpha_dropout("alpha_dropout", input, p, training, input.shape)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: CompatArg = False) -> Tensor:
    """`alpha_dropout` of whole channels: input [N, C, ...] -> the same.

    Raises ShapeError for fewer than two axes.
    """
    if training and p and input.ndim < 2:
        raise ShapeError("feature_alpha_dropout", "input [N, C, ...]", f"shape {tuple(input.shape)}")
    return _alpha_dropout("feature_alpha_dropout", input, p, training, (*input.shape[:2], *(1,) * (input.ndim - 2)))


def _alpha_dropout(where: str, input: Tensor, p: float, training: bool, shape: Any) -> Tensor:
    need_probability(where, p)
    if not training or p == 0:
        return input
    keep = ne(dropout_(ones(shape, device=input.device), p, *random.default.take()), 0)
    return alpha_masked(input, keep, p)


@op(cast=Cast.KEEP, integers="float")
def alpha_masked(input: Array, keep: Index, p):
    """`alpha_dropout` by a keep mask that broadcasts."""
    scale, kept = _alpha_scale(p), plain(keep)
    out = input * kept.astype(input.dtype) * scale  # a product, so that NaN stays NaN
    shift = np.where(kept, -scale * _SELU_MIN * p, scale * _SELU_MIN * (1 - p))
    return out + shift.astype(out.dtype), Saved(keep=keep)


def _alpha_scale(p: float) -> float:
    return 0.0 if p == 1 else 1 / math.sqrt((1 - p) * (1 + p * _SELU_MIN * _SELU_MIN))


@alpha_masked.backward
def alpha_masked_backward(dy, saved, needs, p):
    return dy * plain(saved.keep).astype(dy.dtype) * _alpha_scale(p)


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: CompatArg = False
) -> Tensor:
    """x for x > 0, else a x: a drawn per element from [lower, upper) in training, else their mean.

    input [...] -> [...]. `inplace=True` writes the result into input.
    Raises ArgumentError unless lower <= upper, DTypeError for integers.
    Xu, Wang, Chen, Li 2015, arXiv:1505.00853, sec. 2.4.
    """
    if not -math.inf < lower <= upper < math.inf:
        raise ArgumentError("rrelu", "finite lower <= upper", f"{lower} and {upper}")
    check_floating("rrelu", input)
    if not training:
        return leaky_relu(input, (lower + upper) / 2)
    stored = input.array.dtype

    def slopes(g: np.random.Generator, sizes: tuple[int, ...]) -> Tensor:
        drawn = g.uniform(lower, upper + 0.0, (*sizes, *input.shape))
        return tensor(rounded_within(drawn, stored, lower, upper), input.dtype, input.device)

    return where(gt(input, 0), input, input * of_samples(slopes))
