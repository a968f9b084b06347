"""RandomErasing: a random rectangle of an image set to a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import random
from ...core.tensor import Tensor
from .geometry import check_range, random_rectangle

_TRIES = 10


class RandomErasing:
    """An image [c, h, w] with a random rectangle set to `value`, with probability `p`; of any dtype, array or Tensor.

    scale: of the rectangle's area, as a share of the image's, (from, to). ratio: of its height to its width, (from,
    to), uniform in the logarithm. Ten rectangles are tried; if none is smaller than the image, nothing is erased. Apply
    it after normalization, where 0 is the mean. Zhong et al. 2017, arXiv:1708.04896; the defaults are torchvision's.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float = 0.0,
    ):
        check_range("RandomErasing", "p", (p, p), 0, 1)
        check_range("RandomErasing", "scale", scale, 0, 1)
        check_range("RandomErasing", "ratio", ratio, 1e-6)
        self.p, self.scale, self.ratio, self.value = p, tuple(scale), tuple(ratio), value

    def __call__(self, image: Any) -> Any:
        draw = random.next_draw()
        if isinstance(image, Tensor):
            return Tensor(self.apply(image.numpy(force=True), draw))
        return self.apply(image, draw)

    def apply(self, image: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
        """A copy of `image` [c, h, w], erased or not by the numbers of `draw`."""
        image = image.copy()
        height, width = image.shape[1:]
        if draw.random() < self.p and (found := self.rectangle(height, width, draw)) is not None:
            top, left, rows, columns = found
            image[:, top : top + rows, left : left + columns] = self.value
        return image

    def rectangle(self, height: int, width: int, draw: np.random.Generator) -> tuple[int, int, int, int] | None:
        """A random rectangle (top, left, rows, columns) of an image, or None where none fits."""
        for _ in range(_TRIES):
            columns, rows = random_rectangle(height * width, self.scale, self.ratio, draw)
            if rows < height and columns < width:
                return int(draw.integers(height - rows + 1)), int(draw.integers(width - columns + 1)), rows, columns
        return None
