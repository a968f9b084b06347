"""Ops that are not defined, or have no finite derivative, at an edge of their domain; and arguments away from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ... import ops as f
from ...base.dtypes import DType, bfloat16, float16
from .rewrites import calls, inputs
from .trial import Cure

# How far from the edge: of 0, and of 1, by dtype; the second is tried where the first is not enough.
_FROM_0 = {float16: (1e-6, 1e-4, 1e-3, 1e-2)}
_FROM_1 = {float16: (1e-3, 1e-2), bfloat16: (1e-2, 5e-2)}


class Edge(NamedTuple):
    """low, high: where the domain ends. place: of the argument. form: the call, in which {x} stands for it."""

    low: float
    high: float = math.inf
    place: int = 0
    form: str = ""


EDGES = {
    **dict.fromkeys(("sqrt", "rsqrt", "log", "log2", "log10"), Edge(0.0)),
    "pow": Edge(0.0, form="({x}) ** ..."),
    "reciprocal": Edge(0.0),
    "rdiv": Edge(0.0, form="... / ({x})"),
    "div": Edge(0.0, place=1, form="... / ({x})"),
    "log1p": Edge(-1.0),
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), Edge(-1.0, 1.0)),
    "logit": Edge(0.0, 1.0),
    "acosh": Edge(1.0),
    **dict.fromkeys(("hypot", "atan2", "xlogy"), Edge(0.0)),
}  # fmt: skip


def name_of(name: str) -> str:
    """The op of an event's name."""
    return name.removesuffix("_backward")


def away(name: str, dtype: DType, masked: bool = False) -> Iterator[Cure]:
    """Cures of a result, or a derivative, that is not finite at an edge of the op `name`.

    dtype: of its argument. masked: the result there is left out afterwards, by a `where`.
    """
    edge = EDGES.get(name)
    if edge is None:
        return
    form = edge.form or f"{name}({{x}})"
    if masked:
        text = f"replace the input before the op, not its result after it: {name}(where(..., x, 1))"
        yield Cure(text, inputs(name, _replaced(edge), edge.place))
    if edge.low == 0.0 and edge.high == math.inf:
        for eps in _FROM_0.get(dtype, (1e-8, 1e-6, 1e-4, 1e-2)):
            inside = form.format(x=f"x + {eps:g}")
            yield Cure(f"add an eps inside: {inside}", inputs(name, lambda x, eps=eps: x + eps, edge.place))
    for eps in _FROM_1.get(dtype, (1e-6, 1e-4, 1e-2)):
        least = (edge.low or 0.0) + eps
        most = None if edge.high == math.inf else edge.high - eps
        bounds = f"min={least:.9g}" + ("" if most is None else f", max={most:.9g}")
        text = f"clamp the input to where {name} is defined: {form.format(x=f'x.clamp({bounds})')}"
        yield Cure(text, inputs(name, lambda x, least=least, most=most: x.clamp(least, most), edge.place))


def _replaced(edge: Edge) -> Callable[[Any], Any]:
    inside = edge.low + 1 if edge.high == math.inf else (edge.low + edge.high) / 2 + 0.25
    return lambda x: f.where((x > edge.low) & (x < edge.high), x, inside)


def without_infinite_rows(name: str) -> Callable[[], Any]:
    """A context in which the rows of -inf of a softmax's input hold zeros."""

    def finite(x: Any) -> Any:
        whole = (x == -math.inf).all(-1, keepdim=True)
        return x.masked_fill(whole, 0.0)

    return inputs(name, finite)


def without_infinite_factor(name: str) -> Callable[[], Any]:
    """A context in which a product with an infinite number writes it where the mask is not 0."""

    def through(call: Any, x: Any, y: Any, *args: Any) -> Any:
        mask, factor = (y, x) if isinstance(x, float) else (x, y)
        if isinstance(factor, float) and math.isinf(factor):
            return f.where(mask != 0, factor, f.zeros_like(mask))
        return call(x, y, *args)

    return calls(name, through)
