"""LeNet-5, with the parameter names of PyTorch's tutorial.

LeCun, Bottou, Bengio, Haffner 1998, "Gradient-based learning applied to document recognition", section II.B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import nn, ops
from ..base.errors import ArgumentError, ShapeError
from ..base.limits import Classes, Size
from ..base.registry import Fault, register_model, smallest_image, square_images
from ..core.arguments import shown
from ..core.tensor import Tensor
from ..nn.factory import check_sizes

SMALLEST = 12  # pixels: the smallest image, of which the second pool leaves one pixel


class LeNet5(nn.Module):
    """Two 5x5 convolutions with tanh and 2x2 average pools, then three Linear.

    [N, in_channels, S, S] -> [N, num_classes]. image_size: S; images below 32, such as MNIST's 28, are padded by 2 on
    each side. Unlike the paper, the second convolution reads all channels of the first, pooling has no weights, and the
    output is linear: 61,706 parameters instead of 60,000. Weights are initialized xavier-uniform, biases with zeros.
    Raises ArgumentError for images below 12 pixels, ShapeError for images of another size.
    """

    def __init__(self, in_channels: Size = 1, num_classes: Classes = 10, image_size: Size = 28):
        super().__init__()
        check_sizes("LeNet5", in_channels=in_channels, num_classes=num_classes, image_size=image_size)
        if image_size < SMALLEST:
            raise ArgumentError("LeNet5", f"image_size of at least {SMALLEST}", str(image_size))
        self.in_channels, self.image_size = in_channels, image_size
        padding = 2 if image_size < 32 else 0
        side = ((image_size + 2 * padding - 4) // 2 - 4) // 2
        self.conv1 = nn.Conv2d(in_channels, 6, 5, padding=padding)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all weights and biases."""
        for layer in self.children():
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        wanted = (self.in_channels, self.image_size, self.image_size)
        if not isinstance(x, Tensor) or x.ndim != 4 or tuple(x.shape[1:]) != wanted:
            raise ShapeError(
                "LeNet5",
                f"images [N, {', '.join(map(str, wanted))}]",
                f"{list(x.shape)}" if isinstance(x, Tensor) else shown(x),
            )
        x = ops.avg_pool2d(ops.tanh(self.conv1(x)), 2)
        x = ops.avg_pool2d(ops.tanh(self.conv2(x)), 2).flatten(1)
        return self.fc3(ops.tanh(self.fc2(ops.tanh(self.fc1(x)))))


def _check(model: Any, data: Any) -> Iterator[Fault]:
    yield from square_images(model, data)
    yield from smallest_image(SMALLEST)(model, data)


lenet5 = LeNet5
register_model(LeNet5, "images", name="lenet5", check=_check)
