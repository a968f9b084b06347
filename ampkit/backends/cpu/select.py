"""Body of hardtanh, and with it relu6: in blocks."""

from __future__ import annotations

from ...ops.select import hardtanh
from .blocks import in_blocks

in_blocks(hardtanh)
