"""Kernels of the piecewise linear activations: functions of elementwise.cu.

The gradient of prelu's weight is an elementwise kernel and a sum. Not yet run on a GPU.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit import backends
from ampkit.backends.cuda.launch import elementwise as maps
from ampkit.backends.cuda.launch.reduction import reduced
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise import piecewise_activations as ops

from .registration import back_fits, fits, mapped

Array = Any

for name, op in {
    "LeakyRelu": ops.leaky_relu,
    "HardTanh": ops.hardtanh,
    "HardSigmoid": ops.hardsigmoid,
    "HardSwish": ops.hardswish,
    "HardShrink": ops.hardshrink,
    "SoftShrink": ops.softshrink,
    "Threshold": ops.threshold,
}.items():
    mapped(op, name, "input")
mapped(ops.relu, "Relu", "out")


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
