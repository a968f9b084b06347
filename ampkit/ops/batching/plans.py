"""Calls of other ops that rules are made of, in the dtypes that a cast plan has for the op itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampkit.base.dtypes import accumulator
from ampkit.core.autograd.accumulate import sum_over
from ampkit.core.cast_plan import CastPlan
from ampkit.core.casts import cast
from ampkit.core.dispatch.batching.call import Call, Ran


def wide_dtype(plan: CastPlan) -> Any:
    """The dtype in which a reference computes, float32 or float64."""
    return accumulator(plan.out) if plan.compute is None else plan.compute


def run(call: Call, op: Any, arrays: Sequence[Any], *params: Any, dtype: Any = None) -> Any:
    """The output of `op` on arrays in `dtype`, by default that of the call's result."""
    return Ran(op, arrays, params, call.plan.with_output(call.plan.out if dtype is None else dtype)).out


def summed(array: Any, axes: tuple[int, ...], dtype: Any) -> Any:
    """The sum over `axes`, carried in the accumulator dtype and rounded to `dtype`."""
    wide = cast(array, accumulator(array.dtype))
    if axes:
        kept = tuple([n for i, n in enumerate(array.shape) if i not in axes])
        wide = sum_over(wide, axes).reshape(kept)
    return cast(wide, dtype)
