"""Pictures: images kept as bytes, normalized and augmented when a batch of them is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ShapeError
from ..core.tensor import Tensor
from . import augment
from .datasets import BatchDataset


class Pictures(BatchDataset):
    """Images with labels; item i is (image [c, h, w] float32, label [] int64).

    images: [n, c, h, w] uint8, or what has a length and gives [b, c, h, w] uint8 for an array of numbers, as
    `ImageFolder` does. labels [n] integer. mean, std: by channel, of values in [0, 1].
    crop: zeros around the image before a window is taken; flip: mirror half of them; cutout: side of the square that
    is set to the mean; each drawn from (seed, epoch, index), see `augment`. A DataLoader asks for `batch`, and says
    the epoch; items asked for by number are those of epoch 0.
    Raises ShapeError for another number of labels than of images.
    """

    def __init__(
        self,
        images: Any,
        labels: NDArray[Any],
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        *,
        crop: int = 0,
        flip: bool = False,
        cutout: int = 0,
        seed: int = 0,
    ):
        if len(images) != len(labels):
            raise ShapeError("Pictures", f"a label for each of {len(images)} images", f"{len(labels)}")
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
            return augment.normalize(images, self.mean, self.std)
        draws = augment.draws(self.seed, epoch, indices)
        images = augment.crop(images, draws, self.crop)
        images = augment.flip(images, draws) if self.flip else images
        normal = augment.normalize(images, self.mean, self.std)
        return augment.cutout(normal, draws, self.cutout) if self.cutout else normal
