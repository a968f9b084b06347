"""Norms of one sample: each channel by its own statistics, and each element by those of neighbouring channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.arguments import is_whole
from ampkit.core.autograd.recompute import is_second_run
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..shape.rearrange import tile
from ..shape.view import reshape
from .batch_norm import batch_norm, batch_norm_, check_scales, update_running_statistics

__all__ = ["instance_norm", "local_response_norm"]


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

    input [N, C, ...], the others [C] -> [N, C, ...], in the dtype of the input: `batch_norm` of every sample's channels
    on their own. With use_input_stats the running statistics move towards the averages over the samples by `momentum`
    (unbiased variance), unless those are not finite; without it they serve.
    Raises ShapeError for misfit shapes and for one position with use_input_stats, ArgumentError without running
    statistics where they serve. Ulyanov, Vedaldi, Lempitsky 2016, arXiv:1607.08022, eq. 3.
    """
    where, shape = "instance_norm", tuple(input.shape)
    if input.ndim < 2:
        raise ShapeError(where, "input of shape [N, C, ...]", f"{shape}")
    given = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    check_scales(where, shape[1:2], **{name: x if x is None else x.array for name, x in given.items()})
    if not use_input_stats:
        if running_mean is None or running_var is None:
            cure = "without them, leave use_input_stats at True"
            raise ArgumentError(where, "running_mean and running_var", "None", cure)
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    batch, channels, spots = shape[0], shape[1], math.prod(shape[2:])
    if spots < 2:
        raise ShapeError(where, "more than one position for the statistics of a sample", f"shape {shape}")
    scale, shift = (None if x is None else tile(x, (batch,)) for x in (weight, bias))
    rows = reshape(input, (1, batch * channels, *shape[2:]))
    y, mean, var = batch_norm_(rows, scale, shift, None, None, eps)
    if batch and running_mean is not None and running_var is not None and not is_second_run():
        with backends.device_guard(mean.array):
            each = [blocked_sum(x.array.reshape(batch, channels), 0) / batch for x in (mean, var)]
        update_running_statistics(running_mean.array, running_var.array, *each, spots, momentum)
        running_mean.changed()
        running_var.changed()
    return reshape(y, shape)


@op(cast=Cast.FP32, integers="float")
def local_response_norm(input: Array, size, alpha=1e-4, beta=0.75, k=1.0):
    """Divide by (k + alpha times the mean square over `size` neighbouring channels)^beta; beyond the ends are zeros.

    input [N, C, ...] -> [N, C, ...]. Computed in float32 (float64 for float64 input). Raises ShapeError for fewer than
    two axes, ArgumentError for a size that is no positive integer.
    Krizhevsky, Sutskever, Hinton 2012, NeurIPS 25, sec. 3.3 (alpha / size for its alpha).
    """
    return input * _around(input * input, size, alpha, k) ** -beta, Saved(input=input)


def _around(squares: Any, size: int, alpha: float, k: float) -> Any:
    return _window(squares, size // 2, (size - 1) // 2) * (alpha / size) + k


def _window(x: Any, before: int, after: int) -> Any:
    # Sums of each channel with so many before and after it.
    nothing = np.zeros_like(x[:, :1])
    wide = np.concatenate([nothing] * before + [x] + [nothing] * after, 1)
    total = wide[:, : x.shape[1]]
    for i in range(1, before + after + 1):
        total = total + wide[:, i : i + x.shape[1]]
    return total


@local_response_norm.check
def local_response_norm_check(input, size, alpha, beta, k):
    if input.ndim < 2:
        raise ShapeError("local_response_norm", "input of shape [N, C, ...]", f"{tuple(input.shape)}")
    if not is_whole(size) or isinstance(size, bool) or not 1 <= size < 1 << 31:
        raise ArgumentError("local_response_norm", "size as a positive integer", repr(size))


@local_response_norm.backward
def local_response_norm_backward(dy, saved, needs, size, alpha, beta, k):
    x = saved.input
    around = _around(x * x, size, alpha, k)
    along = dy * x * around ** (-beta - 1)
    return dy * around**-beta - x * _window(along, (size - 1) // 2, size // 2) * (2 * alpha * beta / size)
