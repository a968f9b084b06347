"""Augmentation: batches of images changed at random, each as its (seed, epoch, index) says and nothing else.

draws = augment.draws(seed, epoch, indices)
images = augment.flip(augment.crop(images, draws, padding=4), draws)
images = augment.cutout(augment.normalize(images, mean, std), draws, size=8)

So an image is changed alike in any batch, on any thread and in a run that was resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ShapeError
from ..base.limits import Pixels
from ..core import random
from ..core.tensor import Tensor
from .datasets import BatchDataset

Draws = NDArray[np.uint64]  # [b, 4]: random words of each image

_APART = 1 << 127  # Philox has a key of two words: the second sets these draws apart from all others of the seed


def draws(seed: int, epoch: int, indices: Iterable[int]) -> Draws:
    """The random words of each image in an epoch: block `index` of Philox's draw `epoch`. [b] -> [b, 4] uint64."""
    source, at, found = random.philox(seed | _APART, epoch), 0, []
    for index in map(int, indices):
        source.advance(index - at)  # much quicker than a generator for each, and it goes back as well
        found.append(source.random_raw(4))
        at = index + 1
    return np.array(found, np.uint64).reshape(-1, 4)


def crop(images: NDArray[Any], draws: Draws, padding: int) -> NDArray[Any]:
    """A window of the image's own size, anywhere in it with `padding` zeros on each side. [b, c, h, w] -> the same."""
    if not padding:
        return images
    padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, images.shape[2:], (2, 3))
    rows, columns = (_below(draws[:, 0] >> shift & 0xFFFFFFFF, 2 * padding + 1) for shift in (0, 32))
    return windows[np.arange(len(images)), :, rows, columns]


def flip(images: NDArray[Any], draws: Draws) -> NDArray[Any]:
    """The image, or with probability 1/2 its mirror image, left for right. [b, c, h, w] -> the same."""
    mirrored = (draws[:, 1] & 1).astype(bool)[:, None, None, None]
    return np.where(mirrored, images[..., ::-1], images)


def cutout(images: NDArray[Any], draws: Draws, size: int) -> NDArray[Any]:
    """The image with zeros in a square of `size` pixels around a random one; what is outside is cut off.

    [b, c, h, w] -> the same. Put it after `normalize`, where 0 is the mean. DeVries and Taylor 2017, arXiv:1708.04552.
    """
    height, width = images.shape[2:]
    rows = _within(_below(draws[:, 2], height), height, size)
    columns = _within(_below(draws[:, 3], width), width, size)
    return np.where((rows[:, :, None] & columns[:, None, :])[:, None], images.dtype.type(0), images)


def normalize(images: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """(images / 255 - mean) / std by channel. [b, c, h, w] uint8 -> float32; mean, std [c], or one for all channels."""
    scale, shift = (np.array(part, np.float64).reshape(-1, 1, 1) for part in (std, mean))
    return images * np.float32(1 / (255 * scale)) - np.float32(shift / scale)


def _below(words: Draws, bound: int) -> NDArray[np.int64]:
    # The remainder of a word of 32 bits or more favours small numbers by less than bound / 2^32.
    return (words % np.uint64(bound)).astype(np.int64)


def _within(centers: NDArray[np.int64], length: int, size: int) -> NDArray[np.bool_]:
    """Which of `length` places lie in the `size` around each center. [b] -> [b, length] bool."""
    first = (centers - size // 2)[:, None]
    at = np.arange(length)
    return (at >= first) & (at < first + size)


class AugmentedImages(BatchDataset):
    """Images stored as bytes, normalized and augmented per batch; item i is (image [c, h, w] float32, label [] int64).

    images: [n, c, h, w] uint8, or what has a length and gives [b, c, h, w] uint8 for an array of numbers, as
    `ImageFolder` does. labels [n] integer. mean, std: by channel, of values in [0, 1].
    crop: zeros padded around an image before a window of its size is taken at random. flip: mirror each image with
    probability 1/2. cutout: side of a random square that is set to the mean. Each is drawn from (seed, epoch, index),
    see `draws`. A DataLoader calls `batch` with the epoch; `self[i]` is the item of epoch 0.
    Raises ShapeError for another number of labels than of images.
    """

    def __init__(
        self,
        images: Any,
        labels: NDArray[Any],
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        *,
        crop: Pixels = 0,
        flip: bool = False,
        cutout: Pixels = 0,
        seed: int = 0,
    ):
        if len(images) != len(labels):
            raise ShapeError("AugmentedImages", f"a label for each of {len(images)} images", f"{len(labels)}")
        self.images, self.labels, self.mean, self.std = images, labels, mean, std
        self.crop, self.flip, self.cutout, self.seed = crop, flip, cutout, seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, labels = self.batch([range(len(self))[index]])
        return images[0], labels[0]

    def batch(self, indices: Any, epoch: int = 0) -> list[Tensor]:
        """The items at `indices`, as they are in `epoch`: [images [b, c, h, w] float32, labels [b] int64]."""
        indices = np.asarray(indices, np.int64)
        images = self._changed(self.images[indices], indices, epoch)
        return [Tensor(np.ascontiguousarray(images)), Tensor(self.labels[indices].astype(np.int64))]

    def _changed(self, images: NDArray[np.uint8], indices: NDArray[np.int64], epoch: int) -> NDArray[np.float32]:
        if not (self.crop or self.flip or self.cutout):
            return normalize(images, self.mean, self.std)
        drawn = draws(self.seed, epoch, indices)
        images = crop(images, drawn, self.crop)
        images = flip(images, drawn) if self.flip else images
        normal = normalize(images, self.mean, self.std)
        return cutout(normal, drawn, self.cutout) if self.cutout else normal
