"""MixUp and CutMix: images of a batch mixed with each other, and their labels with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import ArgumentError, RangeError, ShapeError
from ...core import random
from ...core.tensor import Tensor


class _Mix:
    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None):
        if not alpha > 0:
            raise ArgumentError(type(self).__name__, "alpha above 0", f"{alpha}")
        self.alpha, self.num_classes = float(alpha), num_classes

    def __call__(self, images: Any, labels: Any) -> tuple[Any, Any]:
        draw, is_tensor = random.next_draw(), isinstance(images, Tensor)
        images, labels = (each.numpy(force=True) if isinstance(each, Tensor) else each for each in (images, labels))
        mixed = self.apply(images, labels, draw)
        return (Tensor(mixed[0]), Tensor(mixed[1])) if is_tensor else mixed

    def apply(
        self, images: NDArray[Any], labels: NDArray[Any], draw: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """(images [b, c, h, w], probabilities [b, classes] float32), mixed by the numbers of `draw`."""
        if images.ndim != 4 or len(images) != len(labels) or images.dtype.kind != "f":
            needs = "images [b, c, h, w] of a floating dtype, and b labels"
            got = f"{images.dtype} {list(images.shape)} and {len(labels)}"
            raise ShapeError(type(self).__name__, needs, got)
        share = float(draw.beta(self.alpha, self.alpha))
        mixed, share = self.mixed(images, share, draw)
        return mixed, _between(self._probabilities(labels), share)

    def mixed(self, images: NDArray[Any], share: float, draw: np.random.Generator) -> tuple[NDArray[Any], float]:
        """Images of which `share` is their own, the rest of the image before; and the share that it came to."""
        raise NotImplementedError

    def _probabilities(self, labels: NDArray[Any]) -> NDArray[np.float32]:
        if labels.ndim == 2:
            return labels.astype(np.float32)
        if self.num_classes is None:
            raise ArgumentError(type(self).__name__, "num_classes for labels [b]", "None")
        if labels.size and not 0 <= labels.min() <= labels.max() < self.num_classes:
            got = f"{labels.min()} to {labels.max()}"
            raise RangeError(type(self).__name__, f"labels from 0 to {self.num_classes - 1}", got)
        return (labels[:, None] == np.arange(self.num_classes)).astype(np.float32)


def _between(values: NDArray[Any], share: float) -> NDArray[Any]:
    """share * values + (1 - share) * the values of the item before, that of the first being the last."""
    kind = values.dtype.type
    return np.roll(values, 1, 0) * kind(1 - share) + values * kind(share)


class MixUp(_Mix):
    """`MixUp(num_classes=10)(images, labels)`: each image and its label mixed with those before it in the batch.

    images [b, c, h, w] floating, labels [b] integer or [b, classes] probabilities -> images, probabilities
    [b, classes] float32, which `cross_entropy` takes. The share of the own image is drawn for the batch from
    Beta(alpha, alpha). Zhang et al. 2017, arXiv:1710.09412.
    """

    def mixed(self, images: NDArray[Any], share: float, draw: np.random.Generator) -> tuple[NDArray[Any], float]:
        """The weighted means of neighbors."""
        return _between(images, share), share


class CutMix(_Mix):
    """`CutMix(num_classes=10)(images, labels)`: a rectangle of each image replaced by that of the image before it.

    Arguments and result as of MixUp. The share of the area that is kept is drawn from Beta(alpha, alpha); the labels
    are mixed by the share that was kept, as the rectangle is cut off at the edges. Yun et al. 2019, arXiv:1905.04899.
    """

    def mixed(self, images: NDArray[Any], share: float, draw: np.random.Generator) -> tuple[NDArray[Any], float]:
        """Images with a rectangle of their neighbors."""
        height, width = images.shape[2:]
        left, right = _interval(int(draw.integers(width)), width, share)
        top, bottom = _interval(int(draw.integers(height)), height, share)
        mixed = images.copy()
        mixed[..., top:bottom, left:right] = np.roll(images, 1, 0)[..., top:bottom, left:right]
        return mixed, 1 - (right - left) * (bottom - top) / (width * height)


def _interval(center: int, length: int, share: float) -> tuple[int, int]:
    half = int(0.5 * math.sqrt(1 - share) * length)
    return max(0, center - half), min(length, center + half)
