"""Kernels of signs, fractions and steps: maps, see elementwise.cu."""

from __future__ import annotations

from ampkit.ops.pointwise import rounding as ops

from .registration import backwards, forwards, mapped

forwards(ops.frac, "Frac")
forwards(ops.copysign, "CopySign", "input", "out")
backwards(ops.copysign, "CopySign", "input", "out", flat=(1,))
mapped(ops.fmax, "FMax", "input", "other")
mapped(ops.fmin, "FMin", "input", "other")
mapped(ops.heaviside, "Heaviside", "input")
