"""Kernels of the smooth activations: functions of elementwise.cu. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cuda.launch import elementwise as maps
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise import smooth_activations as ops

from .registration import back_fits, fits, mapped

Array = Any

for name, op in {
    "Elu": ops.elu,
    "LogSigmoid": ops.logsigmoid,
    "Silu": ops.silu,
    "Softplus": ops.softplus,
    "Mish": ops.mish,
    "Selu": ops.selu,
    "Celu": ops.celu,
    "Softsign": ops.softsign,
    "TanhShrink": ops.tanhshrink,
}.items():
    mapped(op, name, "input")
mapped(ops.sigmoid, "Sigmoid", "out")
mapped(ops.gelu, lambda approximate: ("Gelu" if approximate == "none" else "GeluTanh", ()), "input")


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
