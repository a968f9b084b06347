"""Bodies of choices between values: maps, see elementwise.cu."""

from __future__ import annotations

from math import inf
from typing import Any

from ...core.dtypes import DType
from ...core.saved import Saved
from ...ops.select import clamp, hardtanh, masked_fill_, maximum, minimum, where_
from . import map as maps
from .mapped import back_fits, fits, gradients, mapped, met, wanted

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


@clamp.backward_primitive.on("cuda", when=back_fits)  # type: ignore[union-attr,untyped-decorator]
def clamp_backward_cuda(dy: Array, saved: Any, needs: Any) -> Any:
    x, low, high = saved.input, saved.min, saved.max
    dtypes = [None if need is None else wanted(need, a, dy) for need, a in zip(needs, (x, low, high), strict=True)]
    name, operands, places = _case(x, low, high)
    found = gradients(clamp, name, dy, operands, [dtypes[i] for i in places])
    if found is NotImplemented:
        return NotImplemented
    return tuple([found[places.index(i)] if i in places else None for i in range(3)])


def _case(x: Array, low: Any, high: Any) -> tuple[str, tuple[Any, ...], tuple[int, ...]]:
    # The function, its operands, and the inputs that its gradients are of. A bound that is a tensor shares a tie.
    if not hasattr(low, "dtype") and not hasattr(high, "dtype"):
        return "Clamp", (x, -inf if low is None else low, inf if high is None else high), (0,)
    if high is None:
        return "Maximum", (x, low), (0, 1)
    return ("Minimum", (x, high), (0, 2)) if low is None else ("ClampBoth", (x, low, high), (0, 1, 2))
