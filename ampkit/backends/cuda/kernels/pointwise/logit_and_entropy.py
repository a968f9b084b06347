"""Kernels of logit and xlogy: functions of elementwise.cu."""

from __future__ import annotations

from math import inf

from ampkit.ops.pointwise.logit_and_entropy import logit, xlogy

from .registration import mapped

mapped(xlogy, "XLogY", "input", "other")
mapped(logit, lambda eps: ("Logit", (-inf, inf) if eps is None else (eps, 1 - eps)), "input")
