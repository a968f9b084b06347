"""Bodies of comparisons: maps, see elementwise.cu."""

from __future__ import annotations

from ...core.dtypes import bool_
from ...ops import compare as ops
from .mapped import forwards

for name, op in {
    "Equal": ops.eq,
    "NotEqual": ops.ne,
    "Less": ops.lt,
    "LessEqual": ops.le,
    "Greater": ops.gt,
    "GreaterEqual": ops.ge,
}.items():
    forwards(op, name, dtype=bool_)
