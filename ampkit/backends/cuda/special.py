"""Bodies of special functions: maps, see elementwise.cu."""

from __future__ import annotations

from ...ops import special as ops
from .mapped import forwards, mapped

mapped(ops.erfc, "Erfc", "input")
mapped(ops.erfinv, "ErfInv", "out")
mapped(ops.xlogy, "XLogY", "input", "other")
forwards(ops.lgamma, "LogGamma", "input")
