"""Kernels of powers, exponentials and logarithms: functions of elementwise.cu."""

from __future__ import annotations

from ampkit.ops.pointwise import powers_and_logs as ops

from .registration import mapped

OF_OUTPUT = {"Sqrt": ops.sqrt, "Rsqrt": ops.rsqrt, "Reciprocal": ops.reciprocal, "Exp": ops.exp, "Exp2": ops.exp2,
             "Expm1": ops.expm1}  # fmt: skip
OF_INPUT = {"Square": ops.square, "Log": ops.log, "Log2": ops.log2, "Log10": ops.log10, "Log1p": ops.log1p}

for name, op in OF_OUTPUT.items():
    mapped(op, name, "out")
for name, op in OF_INPUT.items():
    mapped(op, name, "input")
mapped(ops.pow, "Pow", "input", "exponent", "out")
mapped(ops.logaddexp, "LogAddExp", "input", "other")
mapped(ops.logaddexp2, "LogAddExp2", "input", "other")
