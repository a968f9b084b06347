"""A small convolutional network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import nn
from ..base.errors import ArgumentError
from ..base.limits import Classes, Layers, Probability, Size
from ..base.registry import Fault, register_model
from ..core.tensor import Tensor
from ..nn.factory import check_sizes

_MOST_STAGES = 16


class CNN(nn.Module):
    """Stages of two 3x3 convolutions with batch norm and ReLU, with 2x2 max pools between, then a Linear.

    input [N, in_channels, H, W] -> [N, num_classes]. Stage i has width * 2^i channels; the last stage is
    averaged over the image, so images need at least 2^(stages - 1) x 2^(stages - 1) pixels.
    width: channels of the first stage. stages: pairs of 3x3 convolutions, each with twice the channels. dropout: the
    probability of a zero before the Linear.
    After VGG: Simonyan and Zisserman 2014, arXiv:1409.1556; Ioffe and Szegedy 2015, arXiv:1502.03167.
    """

    def __init__(
        self,
        in_channels: Size = 1,
        num_classes: Classes = 10,
        width: Size = 32,
        stages: Layers = 2,
        dropout: Probability = 0.0,
    ):
        super().__init__()
        check_sizes("cnn", in_channels=in_channels, num_classes=num_classes, width=width, stages=stages)
        if stages > _MOST_STAGES:  # each halves the image
            raise ArgumentError("cnn", f"stages up to {_MOST_STAGES}", f"{stages}")
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


def _check(model: Any, data: Any) -> Iterator[Fault]:
    least = 0 if data is None else min(data.shape[1:])
    if data is not None and model.stages > (most := least.bit_length()):
        yield Fault("model.stages", f"at most {most}: each halves an image of {least} pixels", str(model.stages))


cnn = CNN
register_model(CNN, "images", name="cnn", check=_check)
