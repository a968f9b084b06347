"""CUDA kernels of comparisons, tests for NaN and infinity, and logic: functions of elementwise.cu."""

from __future__ import annotations

from math import inf
from typing import Any

from ampkit.backends.cuda.launch import elementwise
from ampkit.base.dtypes import DType, bool_
from ampkit.ops.pointwise import comparison as ops

from .registration import register_forward, supports_dtypes

for _function, _op in {
    "Equal": ops.eq,
    "NotEqual": ops.ne,
    "Less": ops.lt,
    "LessEqual": ops.le,
    "Greater": ops.gt,
    "GreaterEqual": ops.ge,
    "IsNan": ops.isnan,
    "IsInf": ops.isinf,
    "IsFinite": ops.isfinite,
}.items():
    register_forward(_op, _function, dtype=bool_)
register_forward(ops.isposinf, lambda: ("Equal", (inf,)), dtype=bool_)
register_forward(ops.isneginf, lambda: ("Equal", (-inf,)), dtype=bool_)


def _all_bool(*operands: Any, **params: Any) -> bool:
    return all(getattr(a, "dtype", type(a)) in (bool_, bool) for a in operands)


def _register_logic(op: Any, function: str, when: Any) -> None:
    """Register a logical op. A Python number is converted to its truth value before it could round to zero."""

    def kernel(input: Any, other: Any, *, dtype: DType) -> Any:
        operands = [a if hasattr(a, "dtype") else float(bool(a)) for a in (input, other)]
        return elementwise.forward(function, operands, bool_)

    kernel.__name__ = f"{op.name}_cuda"
    op.on("cuda", when=when)(kernel)


for _function, _logical, _bitwise in (
    ("And", ops.logical_and, ops.bitwise_and),
    ("Or", ops.logical_or, ops.bitwise_or),
    ("Xor", ops.logical_xor, ops.bitwise_xor),
):
    _register_logic(_logical, _function, supports_dtypes)
    _register_logic(_bitwise, _function, _all_bool)  # on bool operands both are the same function
register_forward(ops.logical_not, lambda: ("Equal", (0.0,)), dtype=bool_, when=supports_dtypes)
register_forward(ops.bitwise_not, lambda: ("Equal", (0.0,)), dtype=bool_, when=_all_bool)
