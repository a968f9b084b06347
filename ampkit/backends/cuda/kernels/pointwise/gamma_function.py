"""Kernel of lgamma: a function of elementwise.cu."""

from __future__ import annotations

from ampkit.ops.pointwise.gamma_function import lgamma

from .registration import forwards

forwards(lgamma, "LogGamma", "input")
