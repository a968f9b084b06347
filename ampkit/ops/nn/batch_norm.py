"""Batch and instance normalization: of each channel over the batch, over a sample, or by running statistics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator, float64
from ampkit.base.errors import ArgumentError, ShapeError, StateError
from ampkit.core.autograd.recompute import is_recomputing
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.casts import cast
from ampkit.core.dispatch import primitive
from ampkit.core.dispatch.batching.array import innermost
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..pointwise.selection import select_or_zero
from ..reduction.dot_products import dot_channels, flatten_spatial, sum_channels
from ..shape.repeat_and_flip import tile
from ..shape.view import reshape

__all__ = ["batch_norm", "batch_norm_add_relu", "batch_norm_relu", "instance_norm"]


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each channel to mean 0 and variance 1 over the batch and positions, then scale and shift it.

    input [N, C, ...], the others [C] -> [N, C, ...], in the dtype of the input; statistics in float32 (float64 for
    float64 input). training: normalize by the statistics of the batch, and update the running ones in place by
    `momentum` (with the unbiased variance) if those of the batch are finite; else normalize by the running statistics.
    An empty input is returned as it is and updates nothing. Raises ShapeError for shapes that do not fit and for one
    value per channel in training, ArgumentError for running statistics missing outside training.
    Ioffe, Szegedy 2015, arXiv:1502.03167, algorithm 1.
    """
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps, False)


def batch_norm_relu(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """relu(batch_norm(...)) in one pass: shapes, precision and errors are those of `batch_norm`."""
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps, True)


def batch_norm_add_relu(
    input: Tensor,
    residual: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """relu(batch_norm(...) + residual) in one pass, as at the end of a block of a ResNet, and rounded once.

    residual: of the input's shape. Shapes, precision and errors otherwise are those of `batch_norm`.
    """
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps, True, residual)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    relu: bool,
    residual: Tensor | None = None,
) -> Tensor:
    if not training:
        if running_mean is None or running_var is None:
            raise ArgumentError("batch_norm", "running_mean and running_var", "None", "without them, use training=True")
        return batch_norm_(input, weight, bias, running_mean, running_var, residual, eps, relu)
    if input.ndim > 1:
        running = {"running_mean": running_mean, "running_var": running_var}
        check_scales("batch_norm", (input.shape[1],), **{k: v.array for k, v in running.items() if v is not None})
    if not input.numel():  # has no statistics
        zeros = Tensor(backends.backend_of(input.array).zeros(input.shape[1:2], accumulator(input.array.dtype)))
        return batch_norm_(input, weight, bias, zeros, zeros, residual, eps, relu)
    y, mean, var = batch_norm_(input, weight, bias, None, None, residual, eps, relu)
    if running_mean is not None and running_var is not None and not is_recomputing():
        _update_running(running_mean, running_var, mean.array, var.array, input.array.size // mean.array.size, momentum)
    return y


def _update_running(
    running_mean: Tensor, running_var: Tensor, mean: Any, var: Any, count: int, momentum: float
) -> None:
    # count: of the values that each mean and variance is of.
    if innermost((mean,)) is not innermost((running_mean.array,)):
        cure = "set track_running_stats=False, use eval(), or another norm, as GroupNorm"
        raise StateError("batch_norm", "running statistics of each sample of a vmap", "one for all of them", cure)
    unbiased = count / (count - 1)
    update_running_statistics(running_mean.array, running_var.array, mean, var, unbiased, float(momentum))
    running_mean.changed()
    running_var.changed()


@op(cast=Cast.KEEP, integers="float")
def batch_norm_(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    residual: Array | None,
    eps,
    relu=False,
):
    """`batch_norm` by running statistics -> y; without them, by those of the batch -> (y, mean [C], variance [C]).

    The variance is biased. relu: whether ReLU follows; it commutes with rounding y. residual: added before the ReLU.
    """
    x = flatten_spatial(input)
    if running_mean is not None and running_var is not None:
        y, mean, residual_mean, var = x - running_mean.reshape(-1, 1), running_mean, 0, running_var.reshape(-1, 1)
    else:
        y, mean, residual_mean, var = _center(x)
    rstd = cast(1 / np.sqrt(var + eps), x.dtype)
    scale = rstd if weight is None else rstd * weight.reshape(-1, 1)
    y *= scale
    y += -residual_mean * scale if bias is None else bias.reshape(-1, 1) - residual_mean * scale
    y = y.reshape(input.shape)
    if residual is not None:
        y += residual
    saved = Saved(input=input, weight=weight, running_mean=running_mean, running_var=running_var, mean=mean, rstd=rstd)
    if relu:
        y = select_or_zero(y, np.logical_not(y <= 0))
        if residual is None:
            saved.bias = bias  # the backward recomputes from it where y was positive
        else:
            saved.out = y
    return (y, saved) if running_mean is not None else ((y, mean, cast(var.reshape(-1), x.dtype)), saved)


def _center(x: Any) -> tuple[Any, Any, Any, Any]:
    # (centered x, mean [C], mean of the centered x, variance). Where the mean is large beside the deviation, its
    # rounding moves the centered values; their own mean corrects it (Chan, Golub, LeVeque 1983, Am. Statistician 37,
    # eq. 1.7). In float64, as squares of float32 may overflow.
    count, wide = x.shape[0] * x.shape[2], cast(x, float64)
    mean = sum_channels(wide) / count
    centered = wide - mean
    residual_mean = sum_channels(centered) / count
    var = np.maximum(dot_channels(centered, centered) / count - residual_mean * residual_mean, 0)
    found = centered, (mean + residual_mean).reshape(-1), residual_mean
    return *[cast(each, x.dtype) for each in found], var


@batch_norm_.check
def batch_norm_check(input, weight, bias, running_mean, running_var, residual, eps, relu):
    if not eps > 0:
        raise ArgumentError("batch_norm", "a positive eps", f"{eps}")
    if input.ndim < 2:
        raise ShapeError("batch_norm", "input of shape [N, C, ...]", f"{tuple(input.shape)}")
    shape = (input.shape[1],)
    check_scales("batch_norm", shape, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    assert relu or residual is None
    if residual is not None and residual.shape != input.shape:
        raise ShapeError("batch_norm", f"a residual of the input's shape {tuple(input.shape)}", f"{residual.shape}")
    if running_mean is None and input.shape[0] * math.prod(input.shape[2:]) < 2:
        needs = "more than one value per channel in training"
        raise ShapeError("batch_norm", needs, f"shape {tuple(input.shape)}", "use a larger batch, or eval mode")


@batch_norm_.backward
def batch_norm_backward(dy, saved, needs, eps, relu):
    running = saved.running_mean is not None
    dmean: Any
    dvar: Any
    dy, dmean, dvar = (dy, None, None) if running else dy
    grad, centered = flatten_spatial(dy), flatten_spatial(saved.input) - saved.mean.reshape(-1, 1)
    count, rstd = grad.shape[0] * grad.shape[2], saved.rstd
    scale = rstd if saved.weight is None else rstd * saved.weight.reshape(-1, 1)
    if "out" in vars(saved):
        grad = select_or_zero(grad, flatten_spatial(plain(saved.out)).astype(bool))
    elif relu:
        y = centered * scale + (0 if saved.bias is None else saved.bias.reshape(-1, 1))
        grad = select_or_zero(grad, np.logical_not(y <= 0))
    dresidual = grad.reshape(dy.shape) if needs[5] is not None else None
    grad_sum = sum_channels(grad)
    grad_dot = dot_channels(grad, centered)
    if running:
        dx = grad * scale if needs[0] is not None else None
    else:
        residual_mean = sum_channels(centered) / count
        grad_dot -= residual_mean * grad_sum
        factor = (2 * dvar.reshape(-1, 1) - scale * rstd * (rstd * grad_dot)) / count  # rstd^3 might underflow
        centered *= factor
        centered += (dmean.reshape(-1, 1) - scale * grad_sum) / count - residual_mean * factor
        centered += grad * scale
        dx = centered
    dweight, dbias = (grad_dot * rstd).reshape(-1), grad_sum.reshape(-1)
    drunning = (-grad_sum * scale).reshape(-1), (-0.5 * (grad_dot * rstd) * (scale * rstd)).reshape(-1)
    return dx if dx is None else dx.reshape(dy.shape), dweight, dbias, *drunning, dresidual


@batch_norm_.stand_in("residual")
def gate_for_residual(saved):
    # Where ReLU passed, the norm plus infinity is positive; elsewhere, the norm minus infinity is not.
    return np.where(plain(saved.out) <= 0, -np.inf, np.inf)


@primitive("nn.batch_norm")
@ignore_fp_errors()
def update_running_statistics(
    running_mean: Any, running_var: Any, mean: Any, var: Any, unbiased: float, momentum: float
) -> None:
    """Update the running statistics in place, unless the statistics of the batch are not all finite.

    That is decided on the device; the host reads no value. unbiased: the factor of `var`.
    """
    finite = np.isfinite(mean).all() & np.isfinite(var).all()
    for running, batch in ((running_mean, mean), (running_var, var * unbiased)):
        running[...] = np.where(finite, (1 - momentum) * running + momentum * batch, running)


def check_scales(where: str, shape: tuple[int, ...], **scales: Any) -> None:
    """Raise ShapeError unless each of `scales` has `shape`, or is missing."""
    for name, scale in scales.items():
        if scale is not None and tuple(np.shape(scale)) != shape:
            raise ShapeError(where, f"{name} of shape {shape}", f"{tuple(np.shape(scale))}")


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each channel of each sample to mean 0 and variance 1 over the positions, then scale and shift it.

    input [N, C, ...], the others [C] -> [N, C, ...], in the dtype of the input. use_input_stats: normalize by the
    statistics of the sample, and update the running ones by `momentum` towards the averages over the samples (with the
    unbiased variance) if those are finite; else normalize by the running statistics.
    Raises ShapeError for shapes that do not fit and for one position with use_input_stats, ArgumentError for running
    statistics missing without it. Ulyanov, Vedaldi, Lempitsky 2016, arXiv:1607.08022, eq. 3.
    """
    where, shape = "instance_norm", tuple(input.shape)
    if input.ndim < 2:
        raise ShapeError(where, "input of shape [N, C, ...]", f"{shape}")
    tensors = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    check_scales(where, shape[1:2], **{name: x if x is None else x.array for name, x in tensors.items()})
    if not use_input_stats:
        if running_mean is None or running_var is None:
            cure = "without them, leave use_input_stats at True"
            raise ArgumentError(where, "running_mean and running_var", "None", cure)
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    batch, features, positions = shape[0], shape[1], math.prod(shape[2:])
    if positions < 2:
        raise ShapeError(where, "more than one position for the statistics of a sample", f"shape {shape}")
    scale, shift = (None if x is None else tile(x, (batch,)) for x in (weight, bias))
    rows = reshape(input, (1, batch * features, *shape[2:]))
    y, mean, var = batch_norm_(rows, scale, shift, None, None, None, eps)
    if batch and running_mean is not None and running_var is not None and not is_recomputing():
        with backends.device_guard(mean.array):
            means, variances = (blocked_sum(x.array.reshape(batch, features), 0) / batch for x in (mean, var))
        _update_running(running_mean, running_var, means, variances, positions, momentum)
    return reshape(y, shape)
