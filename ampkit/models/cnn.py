"""A small convolutional network."""

from __future__ import annotations

from .. import nn
from ..core.tensor import Tensor
from ..nn.factory import sizes


class CNN(nn.Module):
    """Stages of two 3x3 convolutions with batch norm and ReLU, each but the last halving the image; then a Linear.

    input [N, in_channels, H, W] -> [N, num_classes]. The widths are width, 2 width, ... per stage; the last stage is
    averaged over the image, so any image of at least 2^(stages - 1) pixels fits.
    After VGG: Simonyan and Zisserman 2014, arXiv:1409.1556; Ioffe and Szegedy 2015, arXiv:1502.03167.
    """

    def __init__(
        self, in_channels: int = 1, num_classes: int = 10, width: int = 32, stages: int = 2, dropout: float = 0.0
    ):
        super().__init__()
        sizes("cnn", in_channels=in_channels, num_classes=num_classes, width=width, stages=stages)
        widths = [width * 2**i for i in range(stages)]
        self.features = nn.Sequential()
        for stage, (before, after) in enumerate(zip([in_channels, *widths], widths, strict=False)):
            self.features.extend([nn.MaxPool2d(2)] if stage else [])
            self.features.extend([*_block(before, after), *_block(after, after)])
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(widths[-1], num_classes)

    def forward(self, input: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.pool(self.features(input)).flatten(1)))


def _block(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]


def cnn(in_channels: int = 1, num_classes: int = 10, width: int = 32, stages: int = 2, dropout: float = 0.0) -> CNN:
    """A CNN for small images, such as the 8x8 digits; see CNN."""
    return CNN(in_channels, num_classes, width, stages, dropout)
