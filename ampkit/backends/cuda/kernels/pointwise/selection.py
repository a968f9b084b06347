"""CUDA kernels of clamp and nan_to_num: functions of elementwise.cu. A missing bound of clamp is an infinity."""

from __future__ import annotations

from math import inf
from typing import Any

from ampkit.backends.cuda.launch import elementwise
from ampkit.base.dtypes import DType, finfo
from ampkit.ops.pointwise.selection import clamp, nan_to_num

from .registration import (
    grad_dtype,
    gradients,
    register_backward,
    round_scalars,
    supports,
    supports_backward,
    with_saved,
)

Array = Any


def _bounds(min: Any, max: Any) -> tuple[Any, Any]:
    return -inf if min is None else min, inf if max is None else max


@clamp.on("cuda", when=supports)
def clamp_cuda(input: Array, min: Any, max: Any, *, dtype: DType) -> Any:
    out = elementwise.forward("Clamp", round_scalars(clamp, (input, *_bounds(min, max))), dtype)
    return with_saved(out, input=input, min=min, max=max)


@clamp.on_backward("cuda", when=supports_backward)
def clamp_backward_cuda(dy: Array, saved: Any, needs: Any) -> Any:
    operands = (saved.input, *_bounds(saved.min, saved.max))
    dtypes = [None if need is None else grad_dtype(need, a, dy) for need, a in zip(needs, operands, strict=True)]
    return gradients(clamp, "Clamp", dy, operands, dtypes)


@nan_to_num.on("cuda", when=supports)
def nan_to_num_cuda(input: Array, nan: Any, posinf: Any, neginf: Any, *, dtype: DType) -> Any:
    limits, kind = finfo(input.dtype), input.dtype.type
    values = nan or 0.0, limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    out = elementwise.forward("NanToNum", (input, *[float(kind(value)) for value in values]), dtype)
    return with_saved(out, input=input)


register_backward(nan_to_num, lambda nan, posinf, neginf: ("NanToNum", ()), "input")
