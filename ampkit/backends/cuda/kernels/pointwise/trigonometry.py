"""Kernels of trigonometric and hyperbolic functions: functions of elementwise.cu."""

from __future__ import annotations

from ampkit.ops.pointwise import trigonometry as ops

from .registration import mapped

for name, op in {
    "Sin": ops.sin,
    "Cos": ops.cos,
    "Asin": ops.asin,
    "Acos": ops.acos,
    "Atan": ops.atan,
    "Sinh": ops.sinh,
    "Cosh": ops.cosh,
    "Asinh": ops.asinh,
    "Acosh": ops.acosh,
    "Atanh": ops.atanh,
    "Sinc": ops.sinc,
}.items():
    mapped(op, name, "input")
mapped(ops.tan, "Tan", "out")
mapped(ops.tanh, "Tanh", "out")
mapped(ops.atan2, "Atan2", "input", "other")
mapped(ops.hypot, "Hypot", "input", "other", "out")
