"""Upsample: images, sequences and volumes in another size."""

from __future__ import annotations

from typing import Any

from ampkit import ops
from ampkit.core.tensor import Tensor

from ..module import Module


class Upsample(Module):
    """input [N, C, ...] -> [N, C, *size], by size or by scale_factor; see `ops.interpolate`."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ):
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        options = (self.mode, self.align_corners, self.recompute_scale_factor)
        return ops.interpolate(input, self.size, self.scale_factor, *options)

    def extra_repr(self) -> str:
        shown = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{shown}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Upsample of images to the nearest pixel."""

    def __init__(self, size: Any = None, scale_factor: Any = None):
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Upsample of images by mixtures, the corners set on each other."""

    def __init__(self, size: Any = None, scale_factor: Any = None):
        super().__init__(size, scale_factor, "bilinear", True)
