"""Kernels of comparisons, questions and logic: maps, see elementwise.cu."""

from __future__ import annotations

from math import inf
from typing import Any

from ampkit.backends.cuda.launch import elementwise as maps
from ampkit.base.dtypes import DType, bool_
from ampkit.ops.pointwise import comparison as ops

from .registration import forwards, known

for name, op in {
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
    forwards(op, name, dtype=bool_)
forwards(ops.isposinf, lambda: ("Equal", (inf,)), dtype=bool_)
forwards(ops.isneginf, lambda: ("Equal", (-inf,)), dtype=bool_)


def _bools(*operands: Any, **numbers: Any) -> bool:
    return all(getattr(a, "dtype", type(a)) in (bool_, bool) for a in operands)


def _logic(op: Any, name: str, when: Any) -> None:
    """A kernel of `op`, for which a number is true or not before it is rounded."""

    def kernel(input: Any, other: Any, *, dtype: DType) -> Any:
        return maps.forward(name, [a if hasattr(a, "dtype") else float(bool(a)) for a in (input, other)], bool_)

    kernel.__name__ = f"{op.name}_cuda"
    op.on("cuda", when=when)(kernel)


# The bits of bool are its truth.
for name, logical, bitwise in (
    ("And", ops.logical_and, ops.bitwise_and),
    ("Or", ops.logical_or, ops.bitwise_or),
    ("Xor", ops.logical_xor, ops.bitwise_xor),
):
    _logic(logical, name, known)
    _logic(bitwise, name, _bools)
forwards(ops.logical_not, lambda: ("Equal", (0.0,)), dtype=bool_, when=known)
forwards(ops.bitwise_not, lambda: ("Equal", (0.0,)), dtype=bool_, when=_bools)
