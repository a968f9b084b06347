"""Kernels of the error function, its complement and its inverse: functions of elementwise.cu."""

from __future__ import annotations

from ampkit.ops.pointwise import error_function as ops

from .registration import mapped

mapped(ops.erf, "Erf", "input")
mapped(ops.erfc, "Erfc", "input")
mapped(ops.erfinv, "ErfInv", "out")
