"""Kernels of special functions: maps, see elementwise.cu."""

from __future__ import annotations

from math import inf

from ampkit.ops.pointwise import special_functions as ops

from .registration import forwards, mapped

mapped(ops.erfc, "Erfc", "input")
mapped(ops.erfinv, "ErfInv", "out")
mapped(ops.xlogy, "XLogY", "input", "other")
forwards(ops.lgamma, "LogGamma", "input")
mapped(ops.logit, lambda eps: ("Logit", (-inf, inf) if eps is None else (eps, 1 - eps)), "input")
