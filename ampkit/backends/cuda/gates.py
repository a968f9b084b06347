"""Bodies of the piecewise and shrinking activations: maps, see elementwise.cu."""

from __future__ import annotations

from ...ops import gates as ops
from .mapped import mapped

for name, op in {
    "HardSigmoid": ops.hardsigmoid,
    "HardSwish": ops.hardswish,
    "Selu": ops.selu,
    "Celu": ops.celu,
    "Softsign": ops.softsign,
    "TanhShrink": ops.tanhshrink,
    "HardShrink": ops.hardshrink,
    "SoftShrink": ops.softshrink,
    "Threshold": ops.threshold,
}.items():
    mapped(op, name, "input")
