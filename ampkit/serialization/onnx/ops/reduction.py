"""Sums, means, extremes, norms, variances; sorting and running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....base.dtypes import bool_, int32, int64
from ....base.errors import ArgumentError
from ..graph import Graph, Value, is_float
from ..registry import FLOAT16, map_formulas, onnx_op
from ..trace import WHERE


def axes_of(dim: Any, ndim: int) -> list[int]:
    """The axes that `dim` names, from 0: all of them for None or an empty list."""
    given: Sequence[int] = range(ndim) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    return sorted(axis % ndim for axis in given or range(ndim)) if ndim else []


def _reduction(name: str, kind: str, low: Any = ()) -> None:
    @onnx_op(name, low=low)
    def build(g: Graph, input: Value, dim: Any, keepdim: bool, dtype: Any = None) -> Any:
        if not is_float(g.out):
            input = g.cast(input, g.out)  # the sum of bools and short integers is int64
        return g.reduce(kind, input, axes_of(dim, input.ndim), keepdim)


for _name, _kind in {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd"}.items():
    _reduction(_name, _kind)
_reduction("amax", "ReduceMax", FLOAT16)
_reduction("amin", "ReduceMin", FLOAT16)


def _has(g: Graph, x: Value, axes: Sequence[int], keepdim: bool) -> Any:
    """Whether there is a True, by counting: the sum over no elements is 0, where ONNX's maximum is the least number."""
    return g.Greater(g.reduce("ReduceSum", g.cast(x, int32), axes, keepdim), g.constant(0, int32))


@onnx_op("norm")
def norm(g: Graph, input: Value, p: Any, dim: Any, keepdim: bool, dtype: Any) -> Any:
    return p_norm(g, input, 2.0 if isinstance(p, str) or p is None else float(p), axes_of(dim, input.ndim), keepdim)


def p_norm(g: Graph, x: Value, p: float, axes: Sequence[int], keepdim: bool) -> Any:
    """(sum |x|^p)^(1/p) over axes; the extreme |x| for infinite p, the count of non-zeros for 0."""
    if p in (1, 2):
        return g.reduce(f"ReduceL{int(p)}", x, axes, keepdim) if axes else g.Abs(x)
    if math.isinf(p):
        return g.reduce("ReduceMax" if p > 0 else "ReduceMin", g.Abs(x), axes, keepdim)
    if p == 0:
        return g.reduce("ReduceSum", g.cast(g.boolean(x), g.dtype), axes, keepdim)
    total = g.reduce("ReduceSum", g.Pow(g.Abs(x), g.constant(p)), axes, keepdim)
    return g.Pow(total, g.constant(1 / p))


@onnx_op("var")
def var(g: Graph, input: Value, dim: Any, keepdim: bool, correction: float) -> Any:
    axes = axes_of(dim, input.ndim)
    count = math.prod(input.shape[axis] for axis in axes)
    if count <= correction:
        needs = f"more than {correction:g} elements along the axes of {g.label}"
        raise ArgumentError(WHERE, needs, str(count))
    centered = g.Sub(input, g.reduce("ReduceMean", input, axes, True))
    found = g.reduce("ReduceMean", g.Mul(centered, centered), axes, keepdim)
    return g.Mul(found, g.constant(count / (count - correction))) if correction else found


def _place(g: Graph, kind: str, x: Value, dim: int | None, keepdim: bool) -> Any:
    x = g.cast(x, int32) if x.dtype == bool_ else x
    if dim is not None and x.ndim:
        return getattr(g, kind)(x, axis=dim, keepdims=int(keepdim))
    found = getattr(g, kind)(g.Reshape(x, g.ints(-1)), axis=0, keepdims=0)
    return g.reshape(found, *(1,) * x.ndim) if keepdim else found


def _extreme(g: Graph, kind: str, place: str, x: Value, dim: int, keepdim: bool) -> Any:
    return g.reduce(kind, x, axes_of(dim, x.ndim), keepdim), _place(g, place, x, dim, keepdim)


map_formulas(
    {
        "any": lambda g, x, dim, keepdim: g.cast(_has(g, g.boolean(x), axes_of(dim, x.ndim), keepdim), g.out),
        "all": lambda g, x, dim, keepdim: g.cast(
            g.Not(_has(g, g.Not(g.boolean(x)), axes_of(dim, x.ndim), keepdim)), g.out
        ),
        "count_nonzero": lambda g, x, dim: g.reduce("ReduceSum", g.cast(g.boolean(x), int64), axes_of(dim, x.ndim)),
        "argmax": lambda g, x, dim, keepdim: _place(g, "ArgMax", x, dim, keepdim),
        "argmin": lambda g, x, dim, keepdim: _place(g, "ArgMin", x, dim, keepdim),
        "max": lambda g, x, dim, keepdim: _extreme(g, "ReduceMax", "ArgMax", x, dim, keepdim),
        "min": lambda g, x, dim, keepdim: _extreme(g, "ReduceMin", "ArgMin", x, dim, keepdim),
    },
    low=FLOAT16,
)
map_formulas({"std": lambda g, x, dim, keepdim, correction: g.Sqrt(var(g, x, dim, keepdim, correction))})


@onnx_op("sort")
def sort(g: Graph, input: Value, dim: int, descending: bool) -> Any:
    return topk(g, input, input.shape[dim] if input.ndim else 1, dim, descending)


@onnx_op("topk")
def topk(g: Graph, input: Value, k: int, dim: int, largest: bool) -> Any:
    flat = input if input.ndim else g.reshape(input, 1)
    found = g.TopK(flat, g.sizes(k), axis=dim, largest=int(largest), outputs=2)
    return found if input.ndim else [g.squeeze(each, 0) for each in found]


@onnx_op("cumsum")
def cumsum(g: Graph, input: Value, dim: int, dtype: Any) -> Any:
    input = input if is_float(g.out) else g.cast(input, g.out)
    return g.CumSum(input, g.constant(dim, int64)) if input.ndim else g.Identity(input)
