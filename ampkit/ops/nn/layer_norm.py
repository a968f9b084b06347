"""Normalization within a sample: layer, RMS, group and local response normalization, and division by a p-norm."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from ampkit.base.dtypes import float64
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.arguments import is_whole
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_mean, blocked_sum
from ampkit.core.capture.anew import BY_ITS_KERNEL
from ampkit.core.casts import cast
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

from ..argument_checks import normalize_axis, parse_shape
from ..pointwise.conversion import stored_like
from ..reduction.dot_products import dot_along, dot_channels, dot_last, flatten_spatial, sum_channels
from ..reduction.norms import p_norm, p_norm_grad
from ..reduction.squares import inverse_root_mean_square
from .batch_norm import check_scales

__all__ = ["group_norm", "layer_norm", "local_response_norm", "normalize", "rms_norm"]


# layer_norm and rms_norm: rows [R, n] are the trailing axes, flattened


def _rows(array: Any, shape: Any) -> Any:
    axes = len(_trailing(shape))
    lead = array.shape[: array.ndim - axes]
    return array.reshape(math.prod(lead), math.prod(array.shape[array.ndim - axes :]))


def _trailing(shape: Any) -> tuple[int, ...]:
    return tuple(shape) if isinstance(shape, (tuple, list)) else (index(shape),)


def _check_trailing(where: str, input: Any, shape: Any, **scales: Any) -> None:
    shape = parse_shape(where, (shape,))
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise ShapeError(where, f"input whose trailing axes are {shape}", f"shape {tuple(input.shape)}")
    if 0 in shape:
        raise ShapeError(where, "rows of at least one element", f"normalized_shape {shape}")
    check_scales(where, shape, **scales)


@op(cast=Cast.FP32, integers="refuse")
def layer_norm(
    input: Array, normalized_shape, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
):
    """Normalize the trailing axes to mean 0 and variance 1, then scale and shift.

    input [..., *S], weight [*S], bias [*S] -> [..., *S]. Statistics in float32 (float64 for float64 input), in two
    passes; the variance is biased. Raises ShapeError if the trailing axes are not `normalized_shape`, or empty.
    Ba, Kiros, Hinton 2016, arXiv:1607.06450, eq. 3-4.
    """
    y, mean, rstd = _standardize(_rows(input, normalized_shape), eps)
    if weight is not None:
        y *= weight.reshape(-1)
    if bias is not None:
        y += bias.reshape(-1)
    return y.reshape(input.shape), Saved(input=input, weight=weight, mean=mean, rstd=rstd)


layer_norm.anew = BY_ITS_KERNEL


@layer_norm.check
def layer_norm_check(input, normalized_shape, weight, bias, eps):
    _check_trailing("layer_norm", input, normalized_shape, weight=weight, bias=bias)


@layer_norm.backward(input="input weight", mean="input weight", rstd="input weight", weight="input")
def layer_norm_backward(dy, saved, needs, normalized_shape, eps):
    dx = dw = None
    grad = _rows(dy, normalized_shape)
    if needs[0] is not None or needs[1] is not None:
        hat = _rows(saved.input, normalized_shape) - saved.mean
        hat *= saved.rstd
    if needs[1] is not None:
        dw = _like(dot_channels(grad[:, :, None], hat[:, :, None]), dy, normalized_shape)
    if needs[0] is not None:
        scaled = grad if saved.weight is None else grad * saved.weight.reshape(-1)
        dx = _standardize_backward(scaled, hat, saved.rstd).reshape(dy.shape)
    return dx, dw, _like(blocked_sum(grad, 0), dy, normalized_shape) if needs[2] is not None else None


def _like(sums: Any, dy: Any, shape: Any) -> Any:
    return sums.reshape(dy.shape[dy.ndim - len(_trailing(shape)) :])


def _standardize(rows: Any, eps: float) -> tuple[Any, Any, Any]:
    # rows [R, n] -> (rows with mean 0 and variance 1, mean [R, 1], rstd [R, 1])
    width = rows.shape[1]
    mean = blocked_mean(rows, 1, True, width)
    centered = rows - mean
    rstd = inverse_root_mean_square(centered, eps)
    centered *= rstd
    return centered, mean, rstd


def _standardize_backward(grad: Any, hat: Any, rstd: Any) -> Any:
    # hat: the standardized rows, a temporary of the caller; it is overwritten.
    width = hat.shape[1]
    hat *= dot_last(grad, hat) / width
    hat += blocked_sum(grad, 1, True) / width
    np.subtract(grad, hat, out=hat)
    hat *= rstd
    return hat


@op(cast=Cast.FP32, integers="refuse")
def rms_norm(input: Array, normalized_shape, weight: Array | None = None, eps: float | None = None):
    """Divide the trailing axes by their root mean square, then scale.

    input [..., *S], weight [*S] -> [..., *S]. Statistics in float32 (float64 for float64 input). eps: None is the
    machine epsilon of that format. Raises ShapeError if the trailing axes are not `normalized_shape`, or empty.
    Zhang, Sennrich 2019, arXiv:1910.07467, eq. 4.
    """
    rows = _rows(input, normalized_shape)
    eps = np.finfo(rows.dtype).eps.item() if eps is None else eps
    rstd = inverse_root_mean_square(rows, eps)
    y = rows * rstd
    if weight is not None:
        y *= weight.reshape(-1)
    return y.reshape(input.shape), Saved(input=input, weight=weight, rstd=rstd)


rms_norm.anew = BY_ITS_KERNEL


@rms_norm.check
def rms_norm_check(input, normalized_shape, weight, eps):
    _check_trailing("rms_norm", input, normalized_shape, weight=weight)


@rms_norm.backward(weight="input")
def rms_norm_backward(dy, saved, needs, normalized_shape, eps):
    dx = dw = None
    grad, hat = _rows(dy, normalized_shape), _rows(saved.input, normalized_shape) * saved.rstd
    if needs[1] is not None:
        dw = _like(dot_channels(grad[:, :, None], hat[:, :, None]), dy, normalized_shape)
    if needs[0] is not None:
        scaled = grad if saved.weight is None else grad * saved.weight.reshape(-1)
        hat *= dot_last(scaled, hat) / hat.shape[1]
        np.subtract(scaled, hat, out=hat)
        hat *= saved.rstd
        dx = hat.reshape(dy.shape)
    return dx, dw


# group_norm: channels are axis 1, [N, C, S]


@op(cast=Cast.FP32, integers="refuse")
def group_norm(
    input: Array, num_groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
):
    """Normalize each of `num_groups` groups of channels to mean 0 and variance 1, then scale and shift each channel.

    input [N, C, ...], weight [C], bias [C] -> [N, C, ...]. Statistics in float32 (float64 for float64 input), in two
    passes; the variance is biased. Raises ShapeError if the groups do not divide the channels, or are empty.
    Wu, He 2018, arXiv:1803.08494, eq. 1-6.
    """
    y, mean, rstd = _standardize(_groups(input, num_groups), eps)
    y = y.reshape(flatten_spatial(input).shape)
    if weight is not None:
        y *= weight.reshape(-1, 1)
    if bias is not None:
        y += bias.reshape(-1, 1)
    y = stored_like(plain(input), y.reshape(input.shape))
    return y, Saved(input=input, weight=weight, mean=mean, rstd=rstd)


@group_norm.check
def group_norm_check(input, num_groups, weight, bias, eps):
    if input.ndim < 2 or num_groups < 1 or input.shape[1] % num_groups:
        needs = f"input [N, C, ...] with C divisible by num_groups={num_groups}"
        raise ShapeError("group_norm", needs, f"{tuple(input.shape)}")
    if 0 in input.shape[1:]:
        raise ShapeError("group_norm", "groups of at least one element", f"shape {tuple(input.shape)}")
    check_scales("group_norm", (input.shape[1],), weight=weight, bias=bias)


@group_norm.backward(weight="input")
def group_norm_backward(dy, saved, needs, num_groups, eps):
    dx = dw = None
    grad = flatten_spatial(dy)
    hat = _groups(saved.input, num_groups) - saved.mean
    hat *= saved.rstd
    if needs[1] is not None:
        dw = dot_channels(grad, hat.reshape(grad.shape)).reshape(-1)
    if needs[0] is not None:
        scaled = grad if saved.weight is None else grad * saved.weight.reshape(-1, 1)
        dx = _standardize_backward(scaled.reshape(hat.shape), hat, saved.rstd).reshape(dy.shape)
    return dx, dw, sum_channels(grad).reshape(-1) if needs[2] is not None else None


def _groups(array: Any, groups: int) -> Any:
    return array.reshape(array.shape[0] * groups, math.prod(array.shape[1:]) // groups)


@op(cast=Cast.FP32, integers="float")
def normalize(input: Array, p=2.0, dim=1, eps=1e-12):
    """Divide by the p-norm along `dim` (see `norm`), or by `eps` where the norm is smaller.

    input [...] -> [...]. Computed in float32 (float64 for float64 input). Raises RangeError for a `dim` out of range.
    """
    norm = p_norm(input, p, dim if input.ndim else (), True)  # CuPy's scalars have no axis
    return input / np.maximum(norm, eps), Saved(input=input, norm=norm)


@normalize.check
def normalize_check(input, p, dim, eps):
    normalize_axis("normalize", dim, input.ndim)
    if math.isnan(p):
        raise ArgumentError("normalize", "p as a number", f"{p}")
    if (p < 0 or math.isinf(p)) and input.ndim and not input.shape[dim]:
        raise ShapeError("normalize", f"at least one element along dim {dim} for this p", f"shape {tuple(input.shape)}")


@normalize.backward
def normalize_backward(dy, saved, needs, p, dim, eps):
    x, norm = saved.input, saved.norm
    divisor = np.maximum(norm, eps)
    unit = x / divisor
    dot = dot_along(dy, unit, dim) / divisor
    dnorm = unit if p == 2 else p_norm_grad(x, norm, p, dim if x.ndim else ())
    return dy / divisor - np.where(norm < eps, 0, dot) * dnorm


@op(cast=Cast.FP32, integers="float")
def local_response_norm(input: Array, size, alpha=1e-4, beta=0.75, k=1.0):
    """Divide by (k + alpha times the mean square over `size` neighbouring channels)^beta, zero-padded at the ends.

    input [N, C, ...] -> [N, C, ...]. Computed in float32 (float64 for float64 input). Raises ShapeError for fewer than
    two axes, ArgumentError for a size that is not a positive integer.
    Krizhevsky, Sutskever, Hinton 2012, NeurIPS 25, sec. 3.3 (alpha / size for its alpha).
    """
    wide = cast(input, float64)
    return cast(wide * _local_mean(wide * wide, size, alpha, k) ** -beta, input.dtype), Saved(input=input)


def _local_mean(squares: Any, size: int, alpha: float, k: float) -> Any:
    return _channel_sums(squares, size // 2, (size - 1) // 2) * (alpha / size) + k


def _channel_sums(x: Any, before: int, after: int) -> Any:
    # The sum of each channel, `before` channels before it and `after` after it.
    zero = np.zeros_like(x[:, :1])
    padded = np.concatenate([zero] * before + [x] + [zero] * after, 1)
    total = padded[:, : x.shape[1]]
    for i in range(1, before + after + 1):
        total = total + padded[:, i : i + x.shape[1]]
    return total


@local_response_norm.check
def local_response_norm_check(input, size, alpha, beta, k):
    if input.ndim < 2:
        raise ShapeError("local_response_norm", "input of shape [N, C, ...]", f"{tuple(input.shape)}")
    if not is_whole(size) or isinstance(size, bool) or not 1 <= size < 1 << 31:
        raise ArgumentError("local_response_norm", "size as a positive integer", repr(size))


@local_response_norm.backward
def local_response_norm_backward(dy, saved, needs, size, alpha, beta, k):
    x = cast(saved.input, float64)
    mean = _local_mean(x * x, size, alpha, k)
    dmean = dy * x * mean ** (-beta - 1)
    dx = dy * mean**-beta - x * _channel_sums(dmean, (size - 1) // 2, size // 2) * (2 * alpha * beta / size)
    return cast(dx, dy.dtype)
