"""ResNet, with torchvision's parameter names.

He, Zhang, Ren, Sun 2015, arXiv:1512.03385, table 1; the stride of a bottleneck sits in its 3x3 convolution (Goyal
et al. 2017, arXiv:1706.02677, section 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, get_args

from .. import nn
from ..base.errors import check_choice
from ..base.limits import Classes, Factor, Size
from ..base.registry import register_model
from ..core.tensor import Tensor
from ..nn.factory import check_sizes
from ..nn.modules.fused import chain, conv_norm_add_relu
from .weights import Weights, started

Stem = Literal["imagenet", "cifar"]


def _conv(before: int, after: int, size: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, size, stride, size // 2 * dilation, dilation, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a residual connection: [N, before, H, W] -> [N, width, H/stride, W/stride]. Figure 5."""

    expansion = 1

    def __init__(
        self, before: int, width: int, stride: int = 1, downsample: nn.Module | None = None, dilation: int = 1
    ):
        super().__init__()
        self.conv1, self.bn1 = _conv(before, width, 3, stride, dilation), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv2, self.bn2 = _conv(width, width, 3, 1, dilation), nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = chain(x, self.conv1, self.bn1, self.relu)
        return conv_norm_add_relu(out, self.conv2, self.bn2, x, self.downsample, self.relu)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a residual: [N, before, H, W] -> [N, 4 width, H/stride, W/stride]. Figure 5."""

    expansion = 4

    def __init__(
        self, before: int, width: int, stride: int = 1, downsample: nn.Module | None = None, dilation: int = 1
    ):
        super().__init__()
        after = width * self.expansion
        self.conv1, self.bn1 = _conv(before, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride, dilation), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, after, 1), nn.BatchNorm2d(after)
        self.relu = nn.ReLU()
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = chain(x, self.conv1, self.bn1, self.relu)
        out = chain(out, self.conv2, self.bn2, self.relu)
        return conv_norm_add_relu(out, self.conv3, self.bn3, x, self.downsample, self.relu)


class ResNet(nn.Module):
    """A ResNet classifier: [N, in_channels, H, W] -> [N, num_classes].

    layers: blocks in each of the four stages. stem: "imagenet" is a 7x7 convolution of stride 2 and a max pool,
    "cifar" a 3x3 convolution alone. zero_init_residual: whether the last norm of each block starts with zero weights,
    so that the block is the identity (Goyal et al. 2017, section 5.1). replace_stride_with_dilation: which of the last
    three stages use dilation in place of stride 2 (Yu and Koltun 2015, arXiv:1511.07122). width: channels of the stem
    and the first stage; each further stage has twice as many. Convolutions are initialized kaiming-normal with fan_out.
    Raises ArgumentError for another stem.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        layers: tuple[int, int, int, int],
        num_classes: int = 1000,
        zero_init_residual: bool = False,
        stem: Stem = "imagenet",
        in_channels: int = 3,
        replace_stride_with_dilation: tuple[bool, bool, bool] = (False, False, False),
        width: int = 64,
    ):
        super().__init__()
        check_sizes("ResNet", num_classes=num_classes, in_channels=in_channels, width=width)
        check_choice("ResNet", "stem", stem, *get_args(Stem))
        large = stem == "imagenet"
        self.conv1, self.bn1 = _conv(in_channels, width, 7 if large else 3, 2 if large else 1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        before, dilation = width, 1
        for stage, (count, dilated) in enumerate(zip(layers, (False, *replace_stride_with_dilation), strict=True)):
            inner, stride, first = width * 2**stage, 2 if stage else 1, dilation
            if dilated:
                stride, dilation = 1, 2 * dilation
            setattr(self, f"layer{stage + 1}", _stage(block, before, inner, count, stride, first, dilation))
            before = inner * block.expansion
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, num_classes)
        self.apply(_initialize)
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, (BasicBlock, Bottleneck)):
                    nn.init.zeros_((module.bn3 if isinstance(module, Bottleneck) else module.bn2).weight)

    def forward(self, x: Tensor) -> Tensor:
        for y in self.stages(x):
            x = y
        return self.fc(self.avgpool(x).flatten(1))

    def stages(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the output of each of the four stages."""
        x = chain(x, self.conv1, self.bn1, self.relu, self.maxpool)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            yield x


def _stage(
    block: Any, before: int, width: int, count: int, stride: int, first: int = 1, dilation: int = 1
) -> nn.Sequential:
    # first: the dilation of the first block, that of the stage before, as in torchvision.
    after, downsample = width * block.expansion, None
    if stride != 1 or before != after:
        downsample = nn.Sequential(_conv(before, after, 1, stride), nn.BatchNorm2d(after))
    rest = (block(after, width, dilation=dilation) for _ in range(1, count))
    return nn.Sequential(block(before, width, stride, downsample, first), *rest)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def deep(layers: tuple[int, ...], depth: float) -> Any:
    """The number of blocks of each stage times `depth`, rounded up."""
    return tuple(math.ceil(count * depth) for count in layers)


def resnet18(
    num_classes: Classes = 1000,
    zero_init_residual: bool = False,
    stem: Stem = "imagenet",
    in_channels: Size = 3,
    width: Size = 64,
    depth: Factor = 1.0,
    weights: Weights | None = None,
) -> ResNet:
    """ResNet-18: 11.7 million parameters with 1000 classes; see ResNet.

    stem: "imagenet" reduces the image to a quarter of its size, "cifar" keeps it. zero_init_residual: each block starts
    as the identity. width: channels of the first stage. depth: a factor on the blocks per stage. weights: a file,
    folder or hub name to start from, of torchvision's or Hugging Face's layout, whose stem is "imagenet"; see
    `load_weights`.
    """
    options = num_classes, zero_init_residual, stem, in_channels
    return started(ResNet(BasicBlock, deep((2, 2, 2, 2), depth), *options, width=width), weights)


def resnet34(
    num_classes: Classes = 1000,
    zero_init_residual: bool = False,
    stem: Stem = "imagenet",
    in_channels: Size = 3,
    width: Size = 64,
    depth: Factor = 1.0,
    weights: Weights | None = None,
) -> ResNet:
    """ResNet-34: 21.8 million parameters with 1000 classes; see resnet18."""
    options = num_classes, zero_init_residual, stem, in_channels
    return started(ResNet(BasicBlock, deep((3, 4, 6, 3), depth), *options, width=width), weights)


def resnet50(
    num_classes: Classes = 1000,
    zero_init_residual: bool = False,
    stem: Stem = "imagenet",
    in_channels: Size = 3,
    width: Size = 64,
    depth: Factor = 1.0,
    weights: Weights | None = None,
) -> ResNet:
    """ResNet-50: 25.6 million parameters with 1000 classes; see resnet18."""
    options = num_classes, zero_init_residual, stem, in_channels
    return started(ResNet(Bottleneck, deep((3, 4, 6, 3), depth), *options, width=width), weights)


for _build in (resnet18, resnet34, resnet50):
    register_model(_build, "images", defaults={"stem": "cifar"})
