"""Random augmentation of batches of images, determined for each image by (seed, epoch, index) alone.

draws = augment.draws(seed, epoch, indices)
images = augment.flip(augment.crop(images, draws, padding=4), draws)
images = augment.cutout(augment.normalize(images, mean, std), draws, size=8)

So an image is augmented the same way in any batch, on any thread and in a resumed run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ShapeError
from ..base.limits import Limits, NotNegative, Pixels, UnitInterval, Whole
from ..core import random
from ..core.tensor import Tensor
from .datasets import BatchDataset
from .transforms.auto_augment import RandAugment, TrivialAugmentWide
from .transforms.color import ColorJitter
from .transforms.erasing import RandomErasing
from .transforms.mix import CutMix, MixUp
from .transforms.pillow import as_array, need_pillow
from .transforms.transform import Transform

Draws = NDArray[np.uint64]  # [b, 4]: random words of each image

Magnitude = Annotated[int, Limits(ge=0, le=30)]  # of RandAugment, in 31 bins
Turn = Annotated[float, Limits(ge=0, le=0.5)]  # of a circle of hues

# The parameters of AugmentedImages that are keys of recipes.
AUGMENTATIONS = frozenset({"crop", "flip", "cutout", "auto_augment", "num_ops", "magnitude", "color_jitter"})
AUGMENTATIONS |= {"random_erasing", "mixup", "cutmix"}
# The second word of Philox's key: separates these draws from all others of the seed, and from each other.
_KEY_BIT, _IMAGE_BIT, _BATCH_BIT = 1 << 127, 1 << 126, 1 << 125


def draws(seed: int, epoch: int, indices: Iterable[int]) -> Draws:
    """The random bits of each image in an epoch: block `index` of draw `epoch` of Philox. [b] -> [b, 4] uint64."""
    source, at, found = random.philox(seed | _KEY_BIT, epoch), 0, []
    for index in map(int, indices):
        source.advance(index - at)  # much faster than a generator per image; negative steps go back
        found.append(source.random_raw(4))
        at = index + 1
    return np.array(found, np.uint64).reshape(-1, 4)


def generators(seed: int, epoch: int, indices: Iterable[int], bit: int = _IMAGE_BIT) -> list[np.random.Generator]:
    """A NumPy Generator for each image in an epoch, each with 2^64 blocks of random words that no other one has."""
    counters = ((epoch << 192) | (int(index) << 64) for index in indices)
    return [np.random.Generator(np.random.Philox(key=seed | bit, counter=counter)) for counter in counters]


def crop(images: NDArray[Any], draws: Draws, padding: int) -> NDArray[Any]:
    """Random crop: pad each side with `padding` zeros and take a random window of the old size. Keeps [b, c, h, w]."""
    if not padding:
        return images
    padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, images.shape[2:], (2, 3))
    rows, columns = (_below(draws[:, 0] >> shift & 0xFFFFFFFF, 2 * padding + 1) for shift in (0, 32))
    return windows[np.arange(len(images)), :, rows, columns]


def flip(images: NDArray[Any], draws: Draws) -> NDArray[Any]:
    """Random horizontal flip with probability 1/2 per image. [b, c, h, w] -> the same shape."""
    mirrored = (draws[:, 1] & 1).astype(bool)[:, None, None, None]
    return np.where(mirrored, images[..., ::-1], images)


def cutout(images: NDArray[Any], draws: Draws, size: int) -> NDArray[Any]:
    """Set a square of `size` x `size` pixels, centered on a random pixel and clipped to the image, to zero.

    [b, c, h, w] -> the same shape. Apply it after `normalize`, where 0 is the mean.
    DeVries and Taylor 2017, arXiv:1708.04552.
    """
    height, width = images.shape[2:]
    rows = _interval_masks(_below(draws[:, 2], height), height, size)
    columns = _interval_masks(_below(draws[:, 3], width), width, size)
    return np.where((rows[:, :, None] & columns[:, None, :])[:, None], images.dtype.type(0), images)


def normalize(images: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """(images / 255 - mean) / std by channel. [b, c, h, w] uint8 -> float32; mean, std [c], or one for all channels."""
    scale, shift = (np.array(part, np.float64).reshape(-1, 1, 1) for part in (std, mean))
    return images * np.float32(1 / (255 * scale)) - np.float32(shift / scale)


def _below(words: NDArray[Any], bound: int) -> NDArray[np.int64]:
    # Random integers in [0, bound). The modulo of words of at least 32 bits has a bias below bound / 2^32.
    return (words % np.uint64(bound)).astype(np.int64)


def _interval_masks(centers: NDArray[np.int64], length: int, size: int) -> NDArray[np.bool_]:
    """Masks of the `size` indices around each center. centers [b] -> [b, length] bool."""
    first = (centers - size // 2)[:, None]
    at = np.arange(length)
    return (at >= first) & (at < first + size)


class AugmentedImages(BatchDataset):
    """Images stored as bytes, normalized and augmented per batch; item i is (image [c, h, w] float32, label [] int64).

    images: [n, c, h, w] uint8, or an object like `ImageFolder` with a length that returns [b, c, h, w] uint8 for an
    index array [b]; if it has a method `read(indices, draws)`, as ImageFolder, training images are read by that. labels
    [n] integer. mean, std: by channel, of values in [0, 1].
    crop: zeros padded around an image before a window of its size is taken at random. flip: mirror each image with
    probability 1/2. cutout: side of a random square that is set to the mean. auto_augment: random operations of
    torchvision's name. num_ops: operations of RandAugment on an image. magnitude: of RandAugment's operations, from 0
    to 30. color_jitter: brightness, contrast, saturation and hue, as of torchvision's ColorJitter. random_erasing: the
    probability that a random rectangle is set to the mean. mixup, cutmix: alpha of torchvision's MixUp and CutMix, of
    which one is drawn for each batch if both are set; 0 mixes nothing. With them labels are probabilities
    [num_classes] float32. Each is drawn from (seed, epoch, index), see `draws` and `generators`; MixUp and CutMix for a
    batch, and on several ranks for each one's part, from the index of its first image. A DataLoader calls `batch` with
    the epoch; `self[i]` is the item of epoch 0.
    Raises ShapeError unless there are as many labels as images, FileError where Pillow is needed and not installed.
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
        auto_augment: Literal["RandAugment", "TrivialAugmentWide"] | None = None,
        num_ops: Whole = 2,
        magnitude: Magnitude = 9,
        color_jitter: tuple[NotNegative, NotNegative, NotNegative, Turn] | None = None,
        random_erasing: UnitInterval = 0.0,
        mixup: NotNegative = 0.0,
        cutmix: NotNegative = 0.0,
        num_classes: int | None = None,
        seed: int = 0,
    ):
        if len(images) != len(labels):
            raise ShapeError("AugmentedImages", f"a label for each of {len(images)} images", f"{len(labels)}")
        self.images, self.labels, self.mean, self.std = images, labels, mean, std
        self.crop, self.flip, self.cutout, self.seed = crop, flip, cutout, seed
        self._changes = _changes(auto_augment, num_ops, magnitude, color_jitter)
        self._erasing = RandomErasing(random_erasing) if random_erasing else None
        kinds = (MixUp, mixup), (CutMix, cutmix)
        self._mixes = [kind(alpha=alpha, num_classes=num_classes) for kind, alpha in kinds if alpha]

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Any, epoch: int = 0) -> list[Tensor]:
        """The items at `indices` [b], augmented for `epoch`: [images [b, c, h, w] float32, labels].

        labels: [b] int64, of mixed images [b, num_classes] float32.
        """
        indices = np.asarray(indices, np.int64)
        read = getattr(self.images, "read", None)
        own = generators(self.seed, epoch, indices) if read or self._changes or self._erasing else []
        images = self.images[indices] if read is None else read(indices, own)
        images, labels = self._augmented(images, indices, epoch, own), self.labels[indices].astype(np.int64)
        if self._mixes and len(indices):
            draw = generators(self.seed, epoch, indices[:1], _BATCH_BIT)[0]
            images, labels = self._mixes[int(draw.integers(len(self._mixes)))].apply(images, labels, draw)
        return [Tensor(np.ascontiguousarray(images)), Tensor(labels)]

    def _augmented(
        self, images: NDArray[np.uint8], indices: NDArray[np.int64], epoch: int, own: Sequence[np.random.Generator]
    ) -> NDArray[np.float32]:
        drawn = (
            draws(self.seed, epoch, indices) if self.crop or self.flip or self.cutout else np.empty((0, 4), np.uint64)
        )
        images = crop(images, drawn, self.crop)
        images = flip(images, drawn) if self.flip else images
        for change in self._changes:
            images = np.stack([_changed(change, image, draw) for image, draw in zip(images, own, strict=True)])
        normal = normalize(images, self.mean, self.std)
        normal = cutout(normal, drawn, self.cutout) if self.cutout else normal
        if self._erasing is None:
            return normal
        return np.stack([self._erasing.apply(image, draw) for image, draw in zip(normal, own, strict=True)])


def _changes(
    auto_augment: str | None, num_ops: int, magnitude: int, color_jitter: Sequence[float] | None
) -> list[Transform]:
    """The changes of single images of 8 bits, in their order."""
    found: list[Transform] = [] if color_jitter is None else [ColorJitter(*color_jitter)]
    if auto_augment is not None:
        found.append(RandAugment(num_ops, magnitude) if auto_augment == "RandAugment" else TrivialAugmentWide())
    if found:
        need_pillow("augmentation", f"run {type(found[0]).__name__}")
    return found


def _changed(change: Transform, image: NDArray[np.uint8], draw: np.random.Generator) -> NDArray[np.uint8]:
    return np.moveaxis(as_array(change.apply(np.moveaxis(image, 0, 2), draw)), 2, 0)
