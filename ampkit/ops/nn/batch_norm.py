"""Batch normalization: each channel by the statistics of the batch, or by running ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.recompute import is_second_run
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.primitive import Primitive
from ampkit.core.tensor import Tensor

from ..indexing.masks import kept
from ..reduction.dot_products import channels, dot_channels, sum_channels

__all__ = ["batch_norm", "batch_norm_relu"]


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
    float64 input). In training the batch's own statistics serve, the running ones move towards them by `momentum` in
    place (unbiased variance), unless the batch's are not finite; otherwise the running ones serve.
    An empty input is its own result, and moves nothing. Raises ShapeError for misfit shapes and for one value per
    channel in training, ArgumentError without running statistics outside of it.
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
) -> Tensor:
    if not training:
        if running_mean is None or running_var is None:
            raise ArgumentError("batch_norm", "running_mean and running_var", "None", "without them, use training=True")
        return batch_norm_(input, weight, bias, running_mean, running_var, eps, relu)
    if input.ndim > 1:
        moved = {"running_mean": running_mean, "running_var": running_var}
        check_scales("batch_norm", (input.shape[1],), **{k: v.array for k, v in moved.items() if v is not None})
    if not input.numel():  # which has no statistics of its own
        zeros = Tensor(backends.backend_of(input.array).zeros(input.shape[1:2], accumulator(input.dtype)))
        return batch_norm_(input, weight, bias, zeros, zeros, eps, relu)
    y, mean, var = batch_norm_(input, weight, bias, None, None, eps, relu)
    if running_mean is not None and running_var is not None and not is_second_run():
        count = input.array.size // mean.array.size
        update_running_statistics(running_mean.array, running_var.array, mean.array, var.array, count, momentum)
        running_mean.changed()
        running_var.changed()
    return y


@op(cast=Cast.KEEP, integers="float")
def batch_norm_(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    eps,
    relu=False,
):
    """`batch_norm` with given statistics -> y; without, with the batch's own -> (y, mean [C], biased variance [C]).

    relu: whether `relu` follows; the order of that and of rounding y makes no difference.
    """
    x = channels(input)
    given = running_mean is not None
    if given:
        y = x - running_mean.reshape(-1, 1)
        mean, slip, var = running_mean, 0, running_var.reshape(-1, 1)
    else:
        y, mean, slip, var = _centre(x)
    rstd = 1 / np.sqrt(var + eps)
    scale = rstd if weight is None else rstd * weight.reshape(-1, 1)
    y *= scale
    y += -slip * scale if bias is None else bias.reshape(-1, 1) - slip * scale
    y = y.reshape(input.shape)
    saved = Saved(input=input, weight=weight, running_mean=running_mean, running_var=running_var, mean=mean, rstd=rstd)
    if relu:
        saved.bias = bias  # with the rest it tells again what passed
        y = kept(y, np.logical_not(y <= 0))
    return (y, saved) if given else ((y, mean, var.reshape(-1)), saved)


def _centre(x: Any) -> tuple[Any, Any, Any, Any]:
    # The rounding of a mean that is large beside the deviation would shift all that follows: `slip`, the mean of what
    # is left after the subtraction, corrects it (Chan, Golub, LeVeque 1983, The American Statistician 37, eq. 1.7).
    count = x.shape[0] * x.shape[2]
    rough = sum_channels(x) / count
    y = x - rough
    slip = sum_channels(y) / count
    var = np.maximum(dot_channels(y, y) / count - slip * slip, 0)
    return y, (rough + slip).reshape(-1), slip, var


@batch_norm_.check
def batch_norm_check(input, weight, bias, running_mean, running_var, eps, relu):
    if not eps > 0:
        raise ArgumentError("batch_norm", "a positive eps", f"{eps}")
    if input.ndim < 2:
        raise ShapeError("batch_norm", "input of shape [N, C, ...]", f"{tuple(input.shape)}")
    shape = (input.shape[1],)
    check_scales("batch_norm", shape, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    if running_mean is None and input.shape[0] * math.prod(input.shape[2:]) < 2:
        cure = "use a larger batch, or eval mode"
        raise ShapeError(
            "batch_norm", "more than one value per channel in training", f"shape {tuple(input.shape)}", cure
        )


@batch_norm_.backward
def batch_norm_backward(dy, saved, needs, eps, relu):
    given = saved.running_mean is not None
    dy, dmean, dvar = (dy, None, None) if given else dy
    slope, centred = channels(dy), channels(saved.input) - saved.mean.reshape(-1, 1)
    count, rstd = slope.shape[0] * slope.shape[2], saved.rstd
    scale = rstd if saved.weight is None else rstd * saved.weight.reshape(-1, 1)
    if relu:
        y = centred * scale + (0 if saved.bias is None else saved.bias.reshape(-1, 1))
        slope = kept(slope, np.logical_not(y <= 0))
    total = sum_channels(slope)
    along = dot_channels(slope, centred)
    if given:
        dx = slope * scale if needs[0] is not None else None
    else:
        slip = sum_channels(centred) / count
        along -= slip * total
        bend = (2 * dvar.reshape(-1, 1) - scale * rstd * rstd * along) / count
        centred *= bend
        centred += (dmean.reshape(-1, 1) - scale * total) / count - slip * bend
        centred += slope * scale
        dx = centred
    dweight, dbias = (along * rstd).reshape(-1), total.reshape(-1)
    drunning = (-total * scale).reshape(-1), (-0.5 * along * scale * rstd * rstd).reshape(-1)
    return dx if dx is None else dx.reshape(dy.shape), dweight, dbias, *drunning


@ignore_fp_errors()
def _update(running_mean: Any, running_var: Any, mean: Any, var: Any, count: int, momentum: float) -> None:
    finite = np.isfinite(mean).all() & np.isfinite(var).all()
    for running, batch in ((running_mean, mean), (running_var, var * (count / (count - 1)))):
        running[...] = np.where(finite, (1 - momentum) * running + momentum * batch, running)


# (running_mean, running_var, mean, var, count, momentum): moves the first two in place, or leaves them alone if the
# statistics of the batch are not all finite: nothing reads a value on the host.
update_running_statistics = Primitive("update_running_statistics", "nn.batch_norm", _update)


def check_scales(where: str, shape: tuple[int, ...], **scales: Any) -> None:
    """Raise ShapeError unless each of `scales` has `shape`, or is missing."""
    for name, scale in scales.items():
        if scale is not None and tuple(np.shape(scale)) != shape:
            raise ShapeError(where, f"{name} of shape {shape}", f"{tuple(np.shape(scale))}")
