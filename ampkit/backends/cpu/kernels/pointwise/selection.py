"""Kernel of hardtanh, and with it relu6: in blocks."""

from __future__ import annotations

from ampkit.backends.cpu.blockwise import in_blocks
from ampkit.ops.pointwise.selection import hardtanh

in_blocks(hardtanh)
