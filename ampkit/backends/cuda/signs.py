"""Bodies of fractions: maps, see elementwise.cu."""

from __future__ import annotations

from ...ops import signs as ops
from .mapped import forwards

forwards(ops.frac, "Frac")
