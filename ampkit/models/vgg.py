"""VGG, with torchvision's parameter names.

Simonyan and Zisserman 2014, arXiv:1409.1556, table 1, columns A, B, D and E; initialized as in torchvision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import nn
from ..base.errors import ArgumentError
from ..base.limits import Classes, Probability, Size, Sizes
from ..base.registry import Fault, register_model, smallest_image
from ..core.tensor import Tensor
from ..nn.factory import check_sizes
from ..ops.named import named
from .weights import Weights, started

# Convolutions of 64, 128, 256, 512 and 512 channels in the five stages.
DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class VGG(nn.Module):
    """Stages of 3x3 convolutions and a 2x2 max pool, then three Linear: [N, in_channels, H, W] -> [N, num_classes].

    depths: convolutions per stage. widths: the channels of each stage. batch_norm: whether batch norm follows each
    convolution. hidden: the width of the two hidden Linear. dropout: the probability of a zero after each of them.
    The output of the stages is averaged to 7x7, so images need at least 2^stages x 2^stages pixels. Convolutions are
    initialized kaiming-normal with fan_out, Linear weights from N(0, 0.01^2), biases with zeros.
    Raises ArgumentError for sizes that are no positive integers, or unless there are as many depths as widths.
    """

    def __init__(
        self,
        depths: Sequence[int],
        batch_norm: bool = False,
        num_classes: Classes = 1000,
        dropout: Probability = 0.5,
        in_channels: Size = 3,
        widths: Sizes = (64, 128, 256, 512, 512),
        hidden: Size = 4096,
    ):
        super().__init__()
        check_sizes("VGG", num_classes=num_classes, in_channels=in_channels, hidden=hidden)
        check_sizes("VGG", **{f"depths[{i}]": n for i, n in enumerate(depths)})
        if len(depths) != len(widths):
            raise ArgumentError("VGG", "as many depths as widths", f"{len(depths)} and {len(widths)}")
        self.features = nn.Sequential()
        before = in_channels
        for depth, width in zip(depths, widths, strict=True):
            for _ in range(depth):
                self.features.extend(_conv(before, width, batch_norm))
                before = width
            self.features.append(nn.MaxPool2d(2))
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        first, second, last = nn.Linear(before * 49, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, num_classes)
        ends = ((nn.ReLU(), nn.Dropout(dropout)), (nn.ReLU(), nn.Dropout(dropout)))
        self.classifier = nn.Sequential(first, *ends[0], second, *ends[1], last)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the weights of the convolutions and of Linear."""
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _conv(in_channels: int, out_channels: int, batch_norm: bool) -> list[nn.Module]:
    norm = [nn.BatchNorm2d(out_channels)] if batch_norm else []
    return [nn.Conv2d(in_channels, out_channels, 3, padding=1), *norm, nn.ReLU()]


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
        nn.init.zeros_(module.bias)


def _vgg(name: str, layers: int, batch_norm: bool, doc: str) -> Callable[..., VGG]:
    args: Any = (DEPTHS[layers], True) if batch_norm else (DEPTHS[layers],)

    @named(name, doc)
    def build(*, weights: Weights | None = None, **changes: Any) -> VGG:
        return started(VGG(*args, **changes), weights)

    return build


_OPTIONS = (
    "any of VGG's arguments, as batch_norm or num_classes. weights: a file, folder or hub name to start from, of "
    "torchvision's layout; see `load_weights`."
)
vgg11 = _vgg("vgg11", 11, False, f"VGG-11: 133 million parameters; {_OPTIONS}")
vgg13 = _vgg("vgg13", 13, False, "VGG-13: 133 million parameters; see vgg11.")
vgg16 = _vgg("vgg16", 16, False, "VGG-16: 138 million parameters; see vgg11.")
vgg19 = _vgg("vgg19", 19, False, "VGG-19: 144 million parameters; see vgg11.")
vgg11_bn = _vgg("vgg11_bn", 11, True, "VGG-11 with batch norm after each convolution; see vgg11.")
vgg16_bn = _vgg("vgg16_bn", 16, True, "VGG-16 with batch norm after each convolution; see vgg11.")


def _check(model: Any, data: Any) -> Iterator[Fault]:
    if len(model.widths) != (stages := len(DEPTHS[16])):
        yield Fault("model.widths", f"{stages} numbers, one for each stage", str(len(model.widths)))
    yield from smallest_image(32)(model, data)


for _build in (vgg11, vgg13, vgg16, vgg19):
    register_model(_build, "images", signature=VGG, exclude=("depths",), check=_check)
