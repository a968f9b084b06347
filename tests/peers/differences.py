"""Where ampkit differs from PyTorch on purpose: reviewed entries, each with its reason. A fault has no place here."""

from __future__ import annotations

from .comparison import Listed

LISTED: list[Listed] = []
