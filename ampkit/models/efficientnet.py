"""EfficientNet, with torchvision's parameter names.

Tan and Le 2019, arXiv:1905.11946, table 1 and section 4; the blocks are those of Sandler et al. 2018,
arXiv:1801.04381, with squeeze and excitation (Hu et al. 2017, arXiv:1709.01507) and stochastic depth (Huang et al.
2016, arXiv:1603.09382).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from .. import nn, ops
from ..base.errors import ArgumentError
from ..base.limits import Classes, Factor, Size
from ..base.registry import register_model
from ..core.tensor import Tensor
from ..nn.factory import check_probability, check_sizes
from .weights import Weights, started


class Stage(NamedTuple):
    """One row of table 1: `blocks` MBConv blocks from `before` to `after` channels, the first with `stride`."""

    expand: int
    kernel: int
    stride: int
    before: int
    after: int
    blocks: int


B0 = (
    Stage(1, 3, 1, 32, 16, 1),
    Stage(6, 3, 2, 16, 24, 2),
    Stage(6, 5, 2, 24, 40, 2),
    Stage(6, 3, 2, 40, 80, 3),
    Stage(6, 5, 1, 80, 112, 3),
    Stage(6, 5, 2, 112, 192, 4),
    Stage(6, 3, 1, 192, 320, 1),
)


def scaled(stages: tuple[Stage, ...], width: float, depth: float) -> tuple[Stage, ...]:
    """Scale the channels by `width`, to multiples of 8, and the blocks by `depth`, rounded up. Section 3.3."""
    return tuple(
        s._replace(before=_eights(s.before * width), after=_eights(s.after * width), blocks=math.ceil(s.blocks * depth))
        for s in stages
    )


def _eights(channels: float) -> int:
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


def _conv(
    before: int, after: int, kernel: int = 1, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), *[nn.SiLU()] * active)


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from the means over the image. Keeps [N, C, H, W]. Hu et al., eq. 2-4."""

    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * ops.sigmoid(self.fc2(ops.silu(self.fc1(self.avgpool(x)))))


class StochasticDepth(nn.Module):
    """In training, set each sample to zero with probability p and divide the others by 1 - p. Huang et al., eq. 2."""

    def __init__(self, p: float):
        super().__init__()
        self.p = check_probability("StochasticDepth", p)

    def forward(self, x: Tensor) -> Tensor:
        # dropout1d of [N, L] zeroes whole rows, here samples.
        return ops.dropout1d(x.flatten(1), self.p, self.training).reshape(x.shape)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class MBConv(nn.Module):
    """1x1 expansion, depthwise convolution, squeeze-and-excitation, 1x1 projection; residual if the shape is kept.

    [N, before, H, W] -> [N, after, H / stride, W / stride]. Sandler et al., figure 3b.
    """

    def __init__(self, expand: int, kernel: int, stride: int, before: int, after: int, p: float):
        super().__init__()
        wide = before * expand
        widen = [_conv(before, wide)] if expand != 1 else []
        across = _conv(wide, wide, kernel, stride, groups=wide)
        squeeze = SqueezeExcitation(wide, max(1, before // 4))
        self.block = nn.Sequential(*widen, across, squeeze, _conv(wide, after, active=False))
        self.stochastic_depth = StochasticDepth(p)
        self.shortcut = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return self.stochastic_depth(self.block(x)) + x if self.shortcut else self.block(x)


class EfficientNet(nn.Module):
    """An EfficientNet classifier: [N, in_channels, H, W] -> [N, num_classes].

    stages: see Stage. Before them is a 3x3 convolution of stride 2, after them a 1x1 convolution to four times the
    channels, the mean over the image, dropout and a Linear. The probability of stochastic depth rises linearly over the
    blocks, from 0 towards stochastic_depth_prob. Convolutions are initialized kaiming-normal with fan_out, the Linear
    uniform in +-1/sqrt(num_classes), biases with zeros.
    Raises ArgumentError without stages, or if a stage's `before` is not the `after` of the one before.
    """

    def __init__(
        self,
        stages: tuple[Stage, ...],
        dropout: float,
        stochastic_depth_prob: float = 0.2,
        num_classes: int = 1000,
        in_channels: int = 3,
    ):
        super().__init__()
        check_sizes("EfficientNet", num_classes=num_classes, in_channels=in_channels)
        _check(stages)
        self.features = nn.Sequential(_conv(in_channels, stages[0].before, 3, 2))
        count, total = 0, sum(stage.blocks for stage in stages)
        for stage in stages:
            chances = [stochastic_depth_prob * (count + i) / total for i in range(stage.blocks)]
            self.features.append(nn.Sequential(*_blocks(stage, chances)))
            count += stage.blocks
        last = 4 * stages[-1].after
        self.features.append(_conv(stages[-1].after, last))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, num_classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all weights but those of the batch norms."""
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _check(stages: tuple[Stage, ...]) -> None:
    if not stages:
        raise ArgumentError("EfficientNet", "at least one Stage", "none")
    for i, (one, then) in enumerate(pairwise(stages), 1):
        if one.after != then.before:
            raise ArgumentError("EfficientNet", f"stages[{i}] of {one.after} channels before", str(then.before))


def _blocks(stage: Stage, chances: list[float]) -> list[MBConv]:
    first = MBConv(stage.expand, stage.kernel, stage.stride, stage.before, stage.after, chances[0])
    return [first, *(MBConv(stage.expand, stage.kernel, 1, stage.after, stage.after, p) for p in chances[1:])]


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
    elif isinstance(module, nn.Linear):
        bound = 1 / math.sqrt(module.out_features)
        nn.init.uniform_(module.weight, -bound, bound)
    if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
        nn.init.zeros_(module.bias)


def efficientnet_b0(
    num_classes: Classes = 1000,
    in_channels: Size = 3,
    width: Factor = 1.0,
    depth: Factor = 1.0,
    weights: Weights | None = None,
) -> EfficientNet:
    """EfficientNet-B0, 5.3 million parameters, for images of 224 pixels; see EfficientNet.

    width: a factor on the channels. depth: a factor on the blocks per stage. weights: a file, folder or hub name
    to start from, of torchvision's layout; see `load_weights`.
    """
    model = EfficientNet(scaled(B0, width, depth), 0.2, num_classes=num_classes, in_channels=in_channels)
    return started(model, weights)


def efficientnet_b4(
    num_classes: Classes = 1000,
    in_channels: Size = 3,
    width: Factor = 1.0,
    depth: Factor = 1.0,
    weights: Weights | None = None,
) -> EfficientNet:
    """EfficientNet-B4, 19 million parameters, for images of 380 pixels; see efficientnet_b0."""
    stages = scaled(B0, 1.4 * width, 1.8 * depth)
    return started(EfficientNet(stages, 0.4, num_classes=num_classes, in_channels=in_channels), weights)


register_model(efficientnet_b0, "images")
register_model(efficientnet_b4, "images")
