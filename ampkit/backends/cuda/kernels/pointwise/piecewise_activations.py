"""Kernels of the piecewise, shrinking and gated activations: maps, see elementwise.cu.

The slope of prelu's weight is a map and a sum. Not yet run on a GPU.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.launch import elementwise as maps
from ampkit.backends.cuda.launch.reduction import reduced
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise import piecewise_activations as ops

from .registration import back_fits, fits, mapped

Array = Any

for name, op in {
    "HardSigmoid": ops.hardsigmoid,
    "HardSwish": ops.hardswish,
    "Selu": ops.selu,
    "Celu": ops.celu,
    "Softsign": ops.softsign,
    "TanhShrink": ops.tanhshrink,
    "HardShrink": ops.hardshrink,
    "SoftShrink": ops.softshrink,
    "Threshold": ops.threshold,
}.items():
    mapped(op, name, "input")


@ops.prelu.on("cuda", when=fits)
def prelu_cuda(input: Array, weight: Array, *, dtype: DType) -> Any:
    out = maps.forward("PRelu", (input, _along(weight, input)), dtype)
    return out if out is NotImplemented else (out, Saved(input=input, weight=weight, shape=weight.shape))


@ops.prelu.on_backward("cuda", when=back_fits)
def prelu_backward_cuda(dy: Array, saved: Any, needs: Any) -> Any:
    x = getattr(saved, "input", 0.0)  # each is dropped where the gradient that reads it is not wanted
    w = 0.0 if needs[0] is None else _along(saved.weight, dy)
    found = maps.backward("PRelu", dy, (x, w), (needs[0], None if needs[1] is None else float32))
    if found is NotImplemented or needs[1] is None:
        return found
    each = prod(saved.shape) > 1
    total = reduced("Add", found[1], [i for i in range(dy.ndim) if i != 1 or not each], False, float32)
    return (
        total
        if total is NotImplemented
        else (found[0], backends.backend_of(dy).cast(total.reshape(saved.shape), needs[1]))
    )


def _along(weight: Array, input: Array) -> Array:
    # One weight for each channel, or for all.
    return weight.reshape(tuple([-1 if i == min(1, input.ndim - 1) else 1 for i in range(input.ndim)]))


@ops.glu.on("cuda", when=fits)
def glu_cuda(input: Array, dim: int, *, dtype: DType) -> Any:
    value, gate = np.split(input, 2, dim)
    out = maps.forward("Glu", (value, gate), dtype)
    return out if out is NotImplemented else (out, Saved(input=input))


@ops.glu.on_backward("cuda", when=back_fits)
def glu_backward_cuda(dy: Array, saved: Any, needs: Any, dim: int) -> Any:
    """Both halves by one launch: an axis of two stands for them, along which dy, value and gate are broadcast."""
    x, at = saved.input, dim % dy.ndim
    parts = [a.reshape((*dy.shape[:at], -1, *dy.shape[at:])) for a in (dy, *np.split(x, 2, at))]
    half = np.arange(2, dtype=float32, like=x).reshape((2, *(1,) * (dy.ndim - at)))
    found = maps.forward("GluSlope", (*parts, half), needs[0])
    return found if found is NotImplemented else found.reshape(x.shape)
