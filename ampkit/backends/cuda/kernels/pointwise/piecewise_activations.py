"""CUDA kernels of prelu: a function of elementwise.cu, and a sum for the gradient of its weight.

Not yet run on a GPU.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit import backends
from ampkit.backends.cuda.launch import elementwise
from ampkit.backends.cuda.launch.reduction import reduced
from ampkit.base.dtypes import DType, float32
from ampkit.ops.pointwise import piecewise_activations as ops

from .registration import supports, supports_backward, with_saved

Array = Any


@ops.prelu.on("cuda", when=supports)
def prelu_cuda(input: Array, weight: Array, *, dtype: DType) -> Any:
    out = elementwise.forward("PRelu", (input, _broadcast_weight(weight, input)), dtype)
    return with_saved(out, input=input, weight=weight, shape=weight.shape)


@ops.prelu.on_backward("cuda", when=supports_backward)
def prelu_backward_cuda(dy: Array, saved: Any, needs: Any) -> Any:
    x = getattr(saved, "input", 0.0)  # not saved where no wanted gradient reads it
    weight = 0.0 if needs[0] is None else _broadcast_weight(saved.weight, dy)
    grads = elementwise.backward("PRelu", dy, (x, weight), (needs[0], None if needs[1] is None else float32))
    if grads is NotImplemented or needs[1] is None:
        return grads
    per_channel = prod(saved.shape) > 1
    total = reduced("Add", grads[1], [i for i in range(dy.ndim) if i != 1 or not per_channel], False, float32)
    if total is NotImplemented:
        return total
    return grads[0], backends.backend_of(dy).cast(total.reshape(saved.shape), needs[1])


def _broadcast_weight(weight: Array, input: Array) -> Array:
    """The weight, one or one per channel, in a shape that broadcasts to the input."""
    return weight.reshape(tuple([-1 if i == min(1, input.ndim - 1) else 1 for i in range(input.ndim)]))
