"""Rearranging and resizing axes: flatten, pixel shuffle, im2col, upsampling."""

from __future__ import annotations

from collections.abc import Sequence

from ampkit import ops
from ampkit.core.tensor import Tensor

from ..op_module import Size, UnaryOpModule

__all__ = [
    "ChannelShuffle", "Flatten", "Fold", "PixelShuffle", "PixelUnshuffle", "Unflatten", "Unfold", "Upsample",
    "UpsamplingBilinear2d", "UpsamplingNearest2d",
]  # fmt: skip


class Flatten(UnaryOpModule, op=ops.flatten):
    """The axes from start_dim to end_dim as one: input [N, C, H, W] -> [N, C H W] by default."""

    start_dim: int = 1
    end_dim: int = -1


class Unflatten(UnaryOpModule, op=ops.unflatten):
    """One axis as several: input [..., n, ...] -> [..., *unflattened_size, ...]."""

    dim: int
    unflattened_size: Sequence[int]

    def __post_init__(self) -> None:
        self.unflattened_size = tuple(self.unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return ops.unflatten(input, self.dim, self.unflattened_size)


class PixelShuffle(UnaryOpModule, op=ops.pixel_shuffle):
    """Groups of channels as blocks of pixels: [..., C r^2, H, W] -> [..., C, H r, W r]. Shi et al. 2016, eq. 4."""

    upscale_factor: int


class PixelUnshuffle(UnaryOpModule, op=ops.pixel_unshuffle):
    """Blocks of pixels as groups of channels: [..., C, H r, W r] -> [..., C r^2, H, W]."""

    downscale_factor: int


class ChannelShuffle(UnaryOpModule, op=ops.channel_shuffle):
    """Interleave the channels of `groups` groups: [N, C, ...] -> [N, C, ...]."""

    groups: int


class Unfold(UnaryOpModule, op=ops.unfold):
    """The sliding windows of images as columns (im2col): input [N, C, H, W] -> [N, C * kernel area, windows]."""

    kernel_size: Size
    dilation: Size = 1
    padding: Size = 0
    stride: Size = 1


class Fold(UnaryOpModule, op=ops.fold):
    """The transpose of Unfold (col2im), which sums overlaps: [N, C * kernel area, windows] -> [N, C, *output_size]."""

    output_size: Size
    kernel_size: Size
    dilation: Size = 1
    padding: Size = 0
    stride: Size = 1


class Upsample(UnaryOpModule, op=ops.interpolate):
    """input [N, C, ...] -> [N, C, *size], by size or by scale_factor; see `ops.interpolate`."""

    size: Size | None = None
    scale_factor: float | Sequence[float] | None = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None

    def extra_repr(self) -> str:
        shown = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{shown}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Nearest-neighbour upsampling of images: [N, C, H, W] -> [N, C, H', W']."""

    def __init__(self, size: Size | None = None, scale_factor: float | Sequence[float] | None = None):
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Bilinear upsampling of images with aligned corners: [N, C, H, W] -> [N, C, H', W']."""

    def __init__(self, size: Size | None = None, scale_factor: float | Sequence[float] | None = None):
        super().__init__(size, scale_factor, "bilinear", True)
