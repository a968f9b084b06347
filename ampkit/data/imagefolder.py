"""Images from a folder per class: `folder/cat/1.png`, `folder/dog/7.npy`, read when a batch needs them."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ConfigError, DTypeError, FileError, check_choice
from ..base.limits import Channels, Classes, Fraction, ImageShape, Positive, Seed, Size, Spreads, UnitInterval
from ..base.registry import Fault, Splits, register_dataset
from .images import checking, files
from .images import folders as found_in
from .images.files import SUFFIXES as SUFFIXES
from .images.files import read as read
from .transforms.geometry import CenterCrop, RandomResizedCrop, Resize, ResizeToCover
from .transforms.pillow import as_array
from .transforms.transform import Compose, Transform

# The mean and standard deviation, by channel, of the training images of ImageNet, as torchvision's weights expect them.
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_WITHOUT = (0.5,), (0.25,)
_RESIZE_PER_CROP = 256 / 224  # of the usual evaluation on ImageNet
_MEASURED = 1024  # images, evenly spaced, of which mean and std are measured


class ImageFolder:
    """The images under `folder`, one subfolder per class: folder[indices] reads [b, *shape] uint8.

    shape: (channels, height, width) of each of them; channels 1 or 3. Files are in the order of their paths, classes
    numbered in the order of `classes`, by default the sorted names of the subfolders. labels: [n] int64. transform:
    brings an image to the shape; without one, all must have it. Hidden files, and files with other suffixes than
    `SUFFIXES`, are skipped. unreadable: "refuse" raises where a file that cannot be read is asked for; "skip" looks for
    such files at once, leaves them out, and one RuntimeWarning counts and names them. check: how it looks: it decodes
    the "pixels" of every file, or reads "headers" and ends; None: the pixels of up to 256 MiB of files.
    Raises FileError for a folder that is missing or contains no images, and for a subfolder that is not in `classes`;
    on reading, for an image of another shape or one that cannot be read, naming the file.
    """

    def __init__(
        self,
        folder: str | Path,
        shape: Sequence[int],
        classes: Sequence[str] | None = None,
        transform: Transform | None = None,
        unreadable: Literal["refuse", "skip"] = "refuse",
        check: checking.Depth | None = None,
    ):
        check_choice("ImageFolder", "unreadable", unreadable, "refuse", "skip")
        check_choice("ImageFolder", "check", check, "pixels", "headers", None)
        self.root, self.shape, self.transform = Path(folder), tuple(shape), transform
        found = found_in.class_names(folder)
        self.classes = tuple(found if classes is None else classes)
        strange = [name for name in found if name not in self.classes]
        if strange:
            raise FileError(f"images: {self.root}", f"classes among {', '.join(self.classes)}", ", ".join(strange))
        self.paths, self.labels = found_in.listed(self.root, self.classes)
        if unreadable == "skip" and (faults := checking.unreadable(self.paths, check)):
            warnings.warn(self._leave_out(faults), RuntimeWarning, stacklevel=2)
        if not self.paths:
            raise FileError(f"images: {self.root}", f"a folder per class with {', '.join(SUFFIXES)} files", "none")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        if not isinstance(indices, np.ndarray):
            cure = "DataLoader(ampkit.data.augment.AugmentedImages(images, images.labels), ...) gives images and labels"
            raise DTypeError("ImageFolder", "an array of indices", f"a {type(indices).__name__}", cure)
        return self.read(indices, (np.random.default_rng(index) for index in indices.tolist()))

    def read(self, indices: NDArray[np.int64], draws: Iterable[np.random.Generator]) -> NDArray[np.uint8]:
        """The images at `indices` [b], each changed by `transform` with the numbers of its own one of `draws`."""
        return np.stack([self._image(self.paths[at], draw) for at, draw in zip(indices, draws, strict=True)])

    def _leave_out(self, faults: Mapping[int, str]) -> str:
        """Be without the files of `faults`; says so."""
        told = f"images: {self.root}: left out {checking.in_words(self.root, self.paths, faults)}"
        kept = [at for at in range(len(self)) if at not in faults]
        self.paths, self.labels = [self.paths[at] for at in kept], self.labels[kept]
        return told

    def at(self, chosen: NDArray[Any], transform: Transform | None = None) -> ImageFolder:
        """The images at the indices, or under the mask, `chosen`, with another transform."""
        part = copy.copy(self)
        numbers = np.arange(len(self))[chosen]
        part.paths, part.labels, part.transform = [self.paths[i] for i in numbers], self.labels[numbers], transform
        return part

    @property
    def identity(self) -> str:
        """A checksum of the names of the files within the folder, in their order."""
        return found_in.checksum(self.root, self.paths)

    def _image(self, path: Path, draw: np.random.Generator) -> NDArray[np.uint8]:
        def fits(shape: tuple[int, ...]) -> None:
            if shape != self.shape:
                wanted, got = (" x ".join(map(str, each)) for each in (self.shape, shape))
                cure = "bring all images to one size, and say it in shape"
                raise FileError(str(path), f"an image of {wanted}", got, cure)

        if self.transform is None:
            return np.moveaxis(as_array(files.load(path, self.shape[0] == 1, fits)), 2, 0)
        return transformed(path, self.shape[0], self.transform, draw)


def transformed(path: Path, channels: int, transform: Transform, draw: np.random.Generator) -> NDArray[np.uint8]:
    """The image in a file, with 1 or 3 channels, changed by `transform` with the numbers of `draw`: [c, h, w]."""
    return np.moveaxis(as_array(transform.apply(files.load_with_channels(path, channels), draw)), 2, 0)


def for_evaluation(shape: Sequence[int], resize: int | None) -> Transform:
    """What brings an image to `shape` (channels, height, width) where nothing is random: resized, its middle cropped.

    resize: pixels of the shorter side before the crop; None: as few as the crop needs.
    """
    height, width = shape[1:]
    return Compose([ResizeToCover((height, width)) if resize is None else Resize(resize), CenterCrop((height, width))])


def load_splits(
    folder: str | Path,
    held_out: str | Path | None = None,
    validation: Fraction = 0.2,
    seed: Seed = 0,
    shape: ImageShape = (3, 224, 224),
    classes: Classes | None = None,
    resize: Size | None = None,
    random_resized_crop: tuple[UnitInterval, UnitInterval] | None = None,
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3),
    mean: Channels | None = None,
    std: Spreads | None = None,
    normalize: Literal["imagenet", "measured"] | None = None,
    unreadable: Literal["refuse", "skip"] = "refuse",
    check: checking.Depth | None = None,
) -> Splits:
    """Images in a folder with one subfolder per class, of any size, read during training.

    folder: a directory with a folder per class, to train on. held_out: another, to evaluate on; unset, a part of
    `folder` is held out. validation: the fraction of each class that is then held out. seed: of the choice of these.
    shape: channels, height and width that every image is brought to. classes: the number of folders; unset, counted.
    resize: pixels of the shorter side of an image, of which the middle is then cropped; unset, as few as the crop
    needs. random_resized_crop: bounds of the share of a training image's area that is cropped at random and resized,
    [0.08, 1.0] in torchvision; unset, training images are cropped as in evaluations. ratio: bounds of the width by the
    height of such a crop. mean, std: by channel, or one for all, of values in [0, 1]; unset, 0.5 and 0.25, or what
    `normalize` says. normalize: with the mean and std of ImageNet, or those measured of the training images.
    unreadable: refuse to train while there are files that cannot be read, or skip them. check: before training, decode
    the pixels of every image, or look at their headers and ends; unset, the pixels of up to 256 MiB of files.
    """
    evaluation = for_evaluation(shape, resize)
    names = found_in.need_classes(folder)
    if classes is not None and len(names) != classes:
        raise ConfigError("data.classes", f"{len(names)}, the folders in {folder}", f"{classes}")
    if held_out is not None:
        found_in.need_same_classes(folder, names, held_out, found_in.class_names(held_out))
    whole, notes = _readable(
        ImageFolder(folder, shape, names, evaluation), unreadable, check, 2 - (held_out is not None)
    )
    if held_out is None:
        mask = found_in.held_out_mask(whole.root, whole.paths, whole.labels, validation, seed)
        train, test = whole.at(~mask, evaluation), whole.at(mask, evaluation)
    else:
        train = whole
        test, more = _readable(ImageFolder(held_out, shape, names, evaluation), unreadable, check, 1)
        notes += more
    if resize is not None and (told := _little_of(shape, resize)):
        notes += (told,)
    mean, std = _statistics(mean, std, normalize, train)
    if random_resized_crop is not None:
        train.transform = RandomResizedCrop(shape[1:], random_resized_crop, ratio)
    return Splits(
        (train, train.labels),
        (test, test.labels),
        tuple(mean),
        tuple(std),
        names,
        notes=notes,
        identity=(train.identity, test.identity),
    )


def _little_of(shape: Sequence[int], resize: int) -> str:
    """What to say of a crop for evaluations whose longer side is below 70 % of the pictures' shorter; "" of others."""
    height, width = shape[1:]
    if max(shape[1:]) >= 0.7 * resize:
        return ""
    share, fits = height * width / resize**2, round(max(shape[1:]) * _RESIZE_PER_CROP)
    told = f"evaluations see the middle {height} x {width} pixels of {resize} x {resize}, {share:.0%} of a picture"
    return f"images: {told}; data.resize={fits} shows most of it, and data.resize= as much as fits"


def _readable(
    found: ImageFolder, unreadable: str, depth: checking.Depth | None, least: int
) -> tuple[ImageFolder, tuple[str, ...]]:
    """The images of a folder that can be read, at least `least` of each class, and what to say of the others."""
    found_in.need_images(found.root, found.classes, found.labels)
    faults = checking.unreadable(found.paths, depth)
    if faults and unreadable == "refuse":
        told, cure = checking.in_words(found.root, found.paths, faults), checking.cure_of(faults)
        cure += ", or leave them out: data.unreadable=skip"
        raise FileError(f"images: {found.root}", "images that can be read", told, cure)
    notes = (found._leave_out(faults),) if faults else ()
    found_in.need_images(found.root, found.classes, found.labels, least)
    return found, notes


def _statistics(
    mean: Sequence[float] | None, std: Sequence[float] | None, normalize: str | None, train: ImageFolder
) -> tuple[Sequence[float], Sequence[float]]:
    if normalize == "measured":
        return measured(train)
    others = IMAGENET if normalize == "imagenet" else _WITHOUT
    return others[0] if mean is None else mean, others[1] if std is None else std


def measured(images: ImageFolder) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) by channel of up to 1024 images, evenly spaced, as values in [0, 1]; a std of 0 becomes 1."""
    chosen = np.linspace(0, len(images) - 1, min(len(images), _MEASURED)).astype(np.int64)
    sums, squares = (np.zeros(images.shape[0], np.int64) for _ in range(2))
    for index in chosen:
        values = images[np.array([index])][0].astype(np.int64)
        sums += values.sum((1, 2))
        squares += (values**2).sum((1, 2))
    count = len(chosen) * math.prod(images.shape[1:])
    pairs = [*zip(sums.tolist(), squares.tolist(), strict=True)]  # integers of Python: the difference below is exact
    spreads = (math.sqrt(count * square - total**2) / (255 * count) for total, square in pairs)
    return tuple(total / (255 * count) for total, _ in pairs), tuple(spread or 1.0 for spread in spreads)


def complete(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a section with the number of classes, which the folder tells where it is left out.

    A folder that is missing tells nothing: `load_splits` names it.
    """
    folder = section.get("folder")
    if section.get("classes") is not None or not isinstance(folder, str) or not _is_folder(folder):
        return section
    return {**section, "classes": len(found_in.need_classes(folder))}


def elsewhere(data: Any, paths: Sequence[str | Path], about: Mapping[str, Any]) -> tuple[ImageFolder, NDArray[Any]]:
    """All images of another folder with folders per class, of the classes that a run was trained on."""
    if len(paths) != 1:
        raise ConfigError("evaluate", "one folder of images", f"{len(paths)}")
    transform = for_evaluation(data.shape, data.resize)
    found = ImageFolder(paths[0], data.shape, about["classes"], transform)
    if faults := checking.unreadable(found.paths, data.check):
        told = checking.in_words(found.root, found.paths, faults)
        raise FileError(f"images: {found.root}", "images that can be read", told, checking.cure_of(faults))
    return found, found.labels


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):  # a text that is no path
        return False


def _check(data: Any, model: Any) -> Iterator[Fault]:
    for key, values in (("mean", data.mean), ("std", data.std)):
        if values is not None and len(values) not in (1, data.shape[0]):
            yield Fault(f"data.{key}", f"1 number, or one for each of {data.shape[0]} channels", f"{len(values)}")
        if values is not None and data.normalize is not None:
            yield Fault(f"data.{key}", f"no value beside normalize={data.normalize}", f"{list(values)}")
    if data.shape[0] not in (1, 3):
        yield Fault("data.shape", "1 or 3 channels", f"{data.shape[0]}")
    if data.normalize == "imagenet" and data.shape[0] != 3:
        cure = "data.normalize=measured takes the mean and std of the images"
        yield Fault("data.normalize", "images of 3 channels for ImageNet's mean and std", f"{data.shape[0]}", cure)
    if data.resize is not None and data.resize < max(data.shape[1:]):
        yield Fault("data.resize", f"at least the {max(data.shape[1:])} pixels that are cropped", f"{data.resize}")
    for key in ("random_resized_crop", "ratio"):
        if (pair := getattr(data, key)) is not None and pair[0] > pair[1]:
            yield Fault(f"data.{key}", "the lower bound first", f"{list(pair)}")


register_dataset("images", load_splits, "images", "images", check=_check, complete=complete, elsewhere=elsewhere)
