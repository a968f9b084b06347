"""Kernels of selection between values: functions of elementwise.cu."""

from __future__ import annotations

from math import inf
from typing import Any

from ampkit.backends.cuda.launch import elementwise as maps
from ampkit.base.dtypes import DType, finfo
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise.selection import clamp, fmax, fmin, masked_fill_, maximum, minimum, nan_to_num, where_

from .registration import back_fits, backwards, fits, gradients, mapped, met, wanted

Array = Any

mapped(maximum, "Maximum", "input", "other")
mapped(minimum, "Minimum", "input", "other")
mapped(fmax, "FMax", "input", "other")
mapped(fmin, "FMin", "input", "other")
mapped(where_, "Where", "condition")
mapped(masked_fill_, "MaskedFill", "mask")


@clamp.on("cuda", when=fits)
def clamp_cuda(input: Array, min: Any, max: Any, *, dtype: DType) -> Any:
    bounds = -inf if min is None else min, inf if max is None else max
    out = maps.forward("Clamp", met(clamp, (input, *bounds)), dtype)
    return NotImplemented if out is NotImplemented else (out, Saved(input=input, min=min, max=max))


@clamp.on_backward("cuda", when=back_fits)
def clamp_backward_cuda(dy: Array, saved: Any, needs: Any) -> Any:
    bounds = -inf if saved.min is None else saved.min, inf if saved.max is None else saved.max
    operands = (saved.input, *bounds)
    dtypes = [None if need is None else wanted(need, a, dy) for need, a in zip(needs, operands, strict=True)]
    return gradients(clamp, "Clamp", dy, operands, dtypes)


@nan_to_num.on("cuda", when=fits)
def nan_to_num_cuda(input: Array, nan: Any, posinf: Any, neginf: Any, *, dtype: DType) -> Any:
    limits, kind = finfo(input.dtype), input.dtype.type
    values = nan or 0.0, limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    out = maps.forward("NanToNum", (input, *[float(kind(value)) for value in values]), dtype)
    return out if out is NotImplemented else (out, Saved(input=input))


backwards(nan_to_num, lambda nan, posinf, neginf: ("NanToNum", ()), "input")
