"""ConvMixer, with the parameter names of its paper's code.

Trockman and Kolter 2022, arXiv:2201.09792, section 2, figure 3 and table 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import nn
from ..base.errors import ArgumentError
from ..base.limits import Classes, Layers, Size
from ..base.registry import Fault, register_model
from ..core.tensor import Tensor
from ..nn.factory import check_sizes
from .weights import Weights, started


class Residual(nn.Module):
    """x + fn(x), where fn keeps the shape."""

    def __init__(self, fn: nn.Module):
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


def convmixer(
    dim: Size = 64,
    depth: Layers = 4,
    kernel_size: Size = 5,
    patch_size: Size = 2,
    num_classes: Classes = 10,
    in_channels: Size = 3,
    weights: Weights | None = None,
) -> nn.Sequential:
    """Patch embedding, then `depth` blocks of a depthwise and a 1x1 convolution.

    [N, in_channels, H, W] -> [N, num_classes]. Each convolution is followed by GELU and batch norm; the depthwise one
    has a residual connection. The mean over the image is the input of a Linear. Images need at least patch_size x
    patch_size pixels; the defaults are for small images. dim: channels. depth: blocks. kernel_size: of the depthwise
    convolutions, odd. patch_size: the side of a patch in pixels. weights: a file, folder or hub
    name to start from, of the layout of the paper's code; see `load_weights`.
    Raises ArgumentError for sizes that are no positive integers, or an even kernel_size.
    """
    check_sizes("convmixer", dim=dim, depth=depth, kernel_size=kernel_size, patch_size=patch_size)
    check_sizes("convmixer", num_classes=num_classes, in_channels=in_channels)
    if kernel_size % 2 == 0:
        raise ArgumentError("convmixer", "an odd kernel_size", str(kernel_size))
    patches = nn.Conv2d(in_channels, dim, patch_size, patch_size)
    layers = (_layer(dim, kernel_size) for _ in range(depth))
    blocks = nn.Sequential(*_active(patches), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return started(blocks.append(nn.Linear(dim, num_classes)), weights)


def _layer(dim: int, kernel_size: int) -> nn.Sequential:
    across = nn.Conv2d(dim, dim, kernel_size, padding="same", groups=dim)
    return nn.Sequential(Residual(nn.Sequential(*_active(across))), *_active(nn.Conv2d(dim, dim, 1)))


def _active(conv: nn.Conv2d) -> tuple[nn.Module, ...]:
    return conv, nn.GELU(), nn.BatchNorm2d(conv.out_channels)


def convmixer_1536_20(num_classes: int = 1000, in_channels: int = 3, weights: Weights | None = None) -> nn.Sequential:
    """ConvMixer-1536/20, 51.6 million parameters, for images of 224 pixels; see convmixer."""
    return convmixer(1536, 20, 9, 7, num_classes, in_channels, weights)


def convmixer_768_32(num_classes: int = 1000, in_channels: int = 3, weights: Weights | None = None) -> nn.Sequential:
    """ConvMixer-768/32, 21.1 million parameters, for images of 224 pixels; see convmixer."""
    return convmixer(768, 32, 7, 7, num_classes, in_channels, weights)


def _check(model: Any, data: Any) -> Iterator[Fault]:
    if model.kernel_size % 2 == 0:
        yield Fault("model.kernel_size", "an odd number", str(model.kernel_size))
    if data is not None and model.patch_size > (least := min(data.shape[1:])):
        yield Fault("model.patch_size", f"at most the image's {least} pixels", str(model.patch_size))


register_model(convmixer, "images", check=_check)
