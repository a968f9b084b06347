"""Kernels of signs and rounding: functions of elementwise.cu."""

from __future__ import annotations

from typing import Any

from ampkit.ops.pointwise import sign_and_rounding as ops

from .registration import backwards, fits, forwards, mapped

for name, op in {"Sign": ops.sign, "Floor": ops.floor, "Ceil": ops.ceil, "Trunc": ops.trunc, "Frac": ops.frac}.items():
    forwards(op, name)
mapped(ops.neg, "Neg")
mapped(ops.abs, "Abs", "input")
forwards(ops.copysign, "CopySign", "input", "out")
backwards(ops.copysign, "CopySign", "input", "out", flat=(1,))
mapped(ops.heaviside, "Heaviside", "input")


def _no_decimals(input: Any, *, decimals: int) -> bool:
    return decimals == 0 and fits(input)


forwards(ops.round, lambda decimals: ("Round", ()), when=_no_decimals)
