"""Kernels of choices between values: maps, see elementwise.cu."""

from __future__ import annotations

from math import inf
from typing import Any

from ampkit.backends.cuda.launch import elementwise as maps
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise.selection import clamp, hardtanh, masked_fill_, maximum, minimum, where_

from .registration import back_fits, fits, gradients, mapped, met, wanted

Array = Any

mapped(maximum, "Maximum", "input", "other")
mapped(minimum, "Minimum", "input", "other")
mapped(hardtanh, "HardTanh", "input")
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
