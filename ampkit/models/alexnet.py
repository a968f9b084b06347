"""AlexNet, with torchvision's parameter names: the single-tower form.

Krizhevsky 2014, arXiv:1404.5997, section 5; Krizhevsky, Sutskever, Hinton 2012, NIPS 25.
"""

from __future__ import annotations

from .. import nn
from ..base.limits import Classes, Probability, Size
from ..base.registry import register_model, smallest_image
from ..core.tensor import Tensor
from ..nn.factory import check_sizes
from .weights import Weights, started


class AlexNet(nn.Module):
    """Five convolutions with ReLU and three max pools, then three Linear: [N, in_channels, H, W] -> [N, num_classes].

    61 million parameters with 1000 classes. The convolutions' output is averaged to 6x6, so images need at least
    63 x 63 pixels. hidden: the width of the two hidden Linear. dropout: the probability of a zero before each of them.
    Weights are initialized as by Conv2d and Linear. Raises ArgumentError for sizes that are no positive integers.
    """

    def __init__(
        self, num_classes: Classes = 1000, dropout: Probability = 0.5, in_channels: Size = 3, hidden: Size = 4096
    ):
        super().__init__()
        check_sizes("AlexNet", num_classes=num_classes, in_channels=in_channels, hidden=hidden)
        self.features = nn.Sequential(
            *(nn.Conv2d(in_channels, 64, 11, 4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            *(nn.Dropout(dropout), nn.Linear(256 * 36, hidden), nn.ReLU()),
            *(nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU()),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def alexnet(
    num_classes: Classes = 1000,
    dropout: Probability = 0.5,
    in_channels: Size = 3,
    hidden: Size = 4096,
    weights: Weights | None = None,
) -> AlexNet:
    """An AlexNet; see AlexNet.

    weights: a file, folder or hub name to start from, of torchvision's layout; see `load_weights`.
    """
    return started(AlexNet(num_classes, dropout, in_channels, hidden), weights)


register_model(alexnet, "images", check=smallest_image(63))
