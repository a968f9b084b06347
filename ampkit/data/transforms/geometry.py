"""Resizing, cropping and mirroring, with the sizes of torchvision and the antialiased filter of Pillow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import ArgumentError
from .pillow import as_array, as_pillow, size_of
from .transform import Transform

_TRIES = 10  # of a random rectangle, as torchvision has it


def check_range(where: str, name: str, values: Sequence[float], least: float, most: float = math.inf) -> None:
    """Raise ArgumentError unless `values` are two numbers (from, to) within the bounds."""
    if len(values) != 2 or not least <= values[0] <= values[1] <= most:
        bounds = f"{least:g} <= from <= to" + ("" if most == math.inf else f" <= {most:g}")
        raise ArgumentError(where, f"{name} (from, to) with {bounds}", f"{tuple(values)}")


def height_and_width(where: str, size: int | Sequence[int]) -> tuple[int, int]:
    """`size`, an integer or (height, width), as a pair. Raises ArgumentError for sizes below 1."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        raise ArgumentError(where, "a size from 1, or (height, width)", f"{size}")
    return pair


def resized(image: Any, size: tuple[int, int], box: tuple[int, int, int, int] | None = None) -> Any:
    """`image`, or its window `box` (left, top, right, bottom), brought to (height, width) by bilinear interpolation.

    Where it gets smaller the filter grows with the scale (antialiasing), as `PIL.Image.resize(..., BILINEAR)` does it.
    Pixels are rounded to 8 bits after each axis. An image that has the size is returned unchanged, without Pillow.
    """
    if box is not None and box != (0, 0, *reversed(size_of(image))):
        left, top, right, bottom = box
        image = image[top:bottom, left:right] if isinstance(image, np.ndarray) else image.crop(box)
    if size_of(image) == size:
        return image
    found = as_pillow(image, "resize")
    found = found.resize(size[::-1], 2)  # PIL.Image.Resampling.BILINEAR
    return as_array(found) if isinstance(image, np.ndarray) else found


class Resize(Transform):
    """An image resized to `size`: an integer for its shorter side, or (height, width).

    The longer side keeps the ratio, rounded down. Bilinear, antialiased, equal to Pillow's and so to torchvision's for
    images of Pillow.
    """

    def __init__(self, size: int | Sequence[int]):
        height_and_width("Resize", size)
        self.size = size

    def apply(self, image: Any, draw: np.random.Generator) -> Any:
        """`image` resized; nothing is drawn."""
        if not isinstance(self.size, int):
            return resized(image, height_and_width("Resize", self.size))
        height, width = size_of(image)
        longer = int(self.size * max(height, width) / min(height, width))
        return resized(image, (longer, self.size) if width <= height else (self.size, longer))


class ResizeToCover(Transform):
    """An image resized, with its ratio kept, to the smallest size from which `size` (height, width) can be cropped."""

    def __init__(self, size: tuple[int, int]):
        self.size = size

    def apply(self, image: Any, draw: np.random.Generator) -> Any:
        """`image` resized; nothing is drawn."""
        (height, width), (rows, columns) = size_of(image), self.size
        if width * rows <= height * columns:
            return resized(image, (max(rows, int(columns * height / width)), columns))
        return resized(image, (rows, max(columns, int(rows * width / height))))


class CenterCrop(Transform):
    """The window of `size` in the middle of an image, an integer or (height, width); a smaller image is padded with 0.

    An odd margin is divided as torchvision does: its half is rounded to even.
    """

    def __init__(self, size: int | Sequence[int]):
        self.size = height_and_width("CenterCrop", size)

    def apply(self, image: Any, draw: np.random.Generator) -> Any:
        """The window; nothing is drawn."""
        rows, columns = self.size
        if size_of(image) == self.size:
            return image
        values = _padded(as_array(image), rows, columns)
        top, left = round((values.shape[0] - rows) / 2), round((values.shape[1] - columns) / 2)
        found = values[top : top + rows, left : left + columns]
        return found if isinstance(image, np.ndarray) else as_pillow(found, "CenterCrop")


def _padded(values: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    lacking = max(0, rows - values.shape[0]), max(0, columns - values.shape[1])
    return np.pad(values, [*((n // 2, n - n // 2) for n in lacking), (0, 0)]) if any(lacking) else values


class RandomResizedCrop(Transform):
    """A random window of an image, resized to `size`: an integer or (height, width).

    scale: of the window's area, as a share of the image's, (from, to), drawn uniformly. ratio: of its width to its
    height, (from, to), uniform in the logarithm. Ten windows are tried; if none fits into the image, the largest one in
    the middle whose ratio is within the bounds is taken, as in torchvision.
    Szegedy et al. 2014, arXiv:1409.4842, section 6.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
    ):
        self.size, self.scale, self.ratio = height_and_width("RandomResizedCrop", size), tuple(scale), tuple(ratio)
        check_range("RandomResizedCrop", "scale", scale, 0, 1)
        check_range("RandomResizedCrop", "ratio", ratio, 1e-6)

    def apply(self, image: Any, draw: np.random.Generator) -> Any:
        """A random window, resized."""
        return resized(image, self.size, self.window(*size_of(image), draw))

    def window(self, height: int, width: int, draw: np.random.Generator) -> tuple[int, int, int, int]:
        """A random window of an image: (left, top, right, bottom)."""
        for _ in range(_TRIES):
            rows, columns = random_rectangle(height * width, self.scale, self.ratio, draw)
            if 0 < rows <= height and 0 < columns <= width:
                top, left = int(draw.integers(height - rows + 1)), int(draw.integers(width - columns + 1))
                return left, top, left + columns, top + rows
        least, most = self.ratio
        columns = min(width, max(1, round(height * most)))
        rows = min(height, max(1, round(width / least)))
        top, left = (height - rows) // 2, (width - columns) // 2
        return left, top, left + columns, top + rows


def random_rectangle(
    area: int, scale: Sequence[float], ratio: Sequence[float], draw: np.random.Generator
) -> tuple[int, int]:
    """(height, width) of a share of `area` drawn from `scale`, with width / height drawn from `ratio` in logarithm."""
    share = area * draw.uniform(scale[0], scale[1])
    aspect = math.exp(draw.uniform(math.log(ratio[0]), math.log(ratio[1])))
    return round(math.sqrt(share / aspect)), round(math.sqrt(share * aspect))


class RandomHorizontalFlip(Transform):
    """An image mirrored left for right with probability `p`."""

    def __init__(self, p: float = 0.5):
        check_range("RandomHorizontalFlip", "p", (p, p), 0, 1)
        self.p = p

    def apply(self, image: Any, draw: np.random.Generator) -> Any:
        """`image`, mirrored or not."""
        if draw.random() >= self.p:
            return image
        return image[:, ::-1] if isinstance(image, np.ndarray) else image.transpose(0)  # PIL's FLIP_LEFT_RIGHT
