"""Kernels of functions of one operand: maps, see elementwise.cu."""

from __future__ import annotations

from typing import Any

from ampkit.ops.pointwise import unary as ops

from .registration import fits, forwards, mapped

OF_OUTPUT = {"Sqrt": ops.sqrt, "Rsqrt": ops.rsqrt, "Reciprocal": ops.reciprocal, "Tanh": ops.tanh, "Exp": ops.exp,
             "Exp2": ops.exp2, "Expm1": ops.expm1}  # fmt: skip
OF_INPUT = {"Abs": ops.abs, "Square": ops.square, "Log": ops.log, "Log2": ops.log2, "Log10": ops.log10,
            "Log1p": ops.log1p, "Erf": ops.erf}  # fmt: skip
FLAT = {"Sign": ops.sign, "Floor": ops.floor, "Ceil": ops.ceil, "Trunc": ops.trunc}

for name, op in OF_OUTPUT.items():
    mapped(op, name, "out")
for name, op in OF_INPUT.items():
    mapped(op, name, "input")
for name, op in FLAT.items():
    forwards(op, name)
mapped(ops.neg, "Neg")


def _whole(input: Any, *, decimals: int) -> bool:
    return decimals == 0 and fits(input)


forwards(ops.round, lambda decimals: ("Round", ()), when=_whole)
