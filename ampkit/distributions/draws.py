"""Random numbers that the families' samples are made of, in the dtype and on the device of their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..autograd.function import Function, once_differentiable
from ..base import dtypes
from ..core.dispatch.batching.draws import of_samples, on_host
from ..core.fp_errors import ignore_fp_errors
from ..core.tensor import Tensor
from ..ops.pointwise.incomplete_gamma import log_draw_slope


def uniform(shape: Sequence[int], like: Tensor, positive: bool = False) -> Tensor:
    """From [0, 1), or `positive`: from (0, 1), so far from 0 that 2 u - 1 is not -1."""
    drawn = ops.rand(tuple(shape), dtype=like.dtype, device=like.device)
    return drawn.clamp(min=dtypes.finfo(like.dtype).eps / 4) if positive else drawn


def normal(shape: Sequence[int], like: Tensor) -> Tensor:
    """Of mean 0 and variance 1."""
    return ops.randn(tuple(shape), dtype=like.dtype, device=like.device)


def in_range(values: Tensor, positive: bool = False) -> Tensor:
    """Values beyond the dtype's range become its largest number, or its smallest one above 0."""
    limits = dtypes.finfo(values.dtype)
    return values.clamp(limits.tiny if positive else limits.min, limits.max)


def log_gamma(concentration: Tensor, shape: Sequence[int]) -> Tensor:
    """Logarithms of draws from gamma(concentration, 1), of `shape`, differentiable in the concentration.

    A logarithm holds the draws that underflow: z(a) = z(a + 1) u^(1 / a), Marsaglia and Tsang 2000, section 6.
    """
    wide = concentration.expand(tuple(shape))

    def draw(g: np.random.Generator, a: Any) -> Any:
        return np.log(g.standard_gamma(a + 1)) - g.standard_exponential(a.shape) / a

    return _Draw.apply(wide, from_host(draw, wide.detach().double()))


class _Draw(Function):
    # A draw, of float64, as a function of the concentration, in whose dtype it is.
    @staticmethod
    def forward(ctx: Any, concentration: Tensor, log_draw: Tensor) -> Tensor:
        ctx.save_for_backward(concentration, log_draw)
        return log_draw.to(concentration.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        concentration, log_draw = ctx.saved_tensors
        with ignore_fp_errors():
            slope = log_draw_slope(concentration.double().array, log_draw.array)
        return grads[0] * Tensor(slope).to(concentration.dtype), None


def gamma(concentration: Tensor, shape: Sequence[int]) -> Tensor:
    """Draws from gamma(concentration, 1), of `shape`, above 0, differentiable in the concentration."""
    return in_range(log_gamma(concentration, shape).exp(), positive=True)


def from_host(draw: Callable[..., Any], *values: Tensor) -> Tensor:
    """draw(generator, *arrays of float64) of the values of tensors, in the first one's dtype, off the tape."""
    first = values[0]
    arrays = [value.astype(np.float64) for value in on_host(*values)]
    return of_samples(lambda g, _: ops.tensor(draw(g, *arrays), dtype=first.dtype, device=first.device))


def log_beta(*concentrations: Tensor) -> Tensor:
    """The logarithm of the multivariate beta function: the sum of lgamma less lgamma of the sum."""
    total, logs = concentrations[0], concentrations[0].lgamma()
    for value in concentrations[1:]:
        total, logs = total + value, logs + value.lgamma()
    return logs - total.lgamma()


EULER = 0.57721566490153286
LOG_2 = math.log(2)
