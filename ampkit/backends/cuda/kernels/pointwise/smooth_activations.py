"""CUDA kernels of glu: functions of elementwise.cu. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cuda.launch import elementwise
from ampkit.base.dtypes import DType, float32
from ampkit.ops.pointwise.smooth_activations import glu

from .registration import supports, supports_backward, with_saved

Array = Any


@glu.on("cuda", when=supports)
def glu_cuda(input: Array, dim: int, *, dtype: DType) -> Any:
    return with_saved(elementwise.forward("Glu", np.split(input, 2, dim), dtype), input=input)


@glu.on_backward("cuda", when=supports_backward)
def glu_backward_cuda(dy: Array, saved: Any, needs: Any, dim: int) -> Any:
    """Compute both halves in one launch: dy, value and gate are broadcast along a new axis of size 2."""
    x, axis = saved.input, dim % dy.ndim
    parts = [a.reshape((*dy.shape[:axis], -1, *dy.shape[axis:])) for a in (dy, *np.split(x, 2, axis))]
    half = np.arange(2, dtype=float32, like=x).reshape((2, *(1,) * (dy.ndim - axis)))
    dx = elementwise.forward("GluGrad", (*parts, half), needs[0])
    return dx if dx is NotImplemented else dx.reshape(x.shape)
