"""Images from a folder per class: `folder/cat/1.png`, `folder/dog/7.npy`, read when a batch needs them.

Arrays of NumPy (.npy) and Netpbm's binary files (.ppm, .pgm) are read here; PNG, JPEG and others need Pillow.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..base import files
from ..base.errors import ConfigError, FileError
from ..base.files import foreign, opened
from ..base.limits import Channels, Classes, ImageShape, Spreads
from ..base.registry import Fault, Splits, register_dataset

SUFFIXES = (".npy", ".ppm", ".pgm", ".png", ".jpg", ".jpeg", ".bmp", ".webp")

_HEAD = 2**14  # bytes: more than NumPy writes, and comments enough for Netpbm
_SMALL, _PIXELS_PER_BYTE = 2**22, 2**14  # pixels; a single color in one bit each is packed half as closely

# Netpbm's P5 and P6: words apart by white space, comments from # to the end of a line, one white space, the bytes.
_GAP = rb"(?:\s++|#[^\n]*+\n)++"
_NETPBM = re.compile(rb"P([56])" + _GAP + rb"(\d{1,20})" + _GAP + rb"(\d{1,20})" + _GAP + rb"(\d{1,20})\s")

# NumPy's .npy: magic, version, length of the header, the header itself, padded with spaces to the end of a line.
_MAGIC, _LENGTHS = b"\x93NUMPY", {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}  # bytes of the length
_NUMPY = re.compile(
    rb"\{'descr': '(?P<dtype>[^']+)', 'fortran_order': (?P<order>True|False), "
    rb"'shape': \((?P<shape>(?:\d{1,20},? ?){0,64}+)\), *+\} *+\n"
)

# Called with the shape [channels, h, w]; raises FileError for another than expected.
_Fits = Callable[[tuple[int, ...]], None]


class ImageFolder:
    """The images under `folder`, one subfolder per class: folder[indices] reads [b, *shape] uint8.

    shape: (channels, height, width) of each of them; channels 1 or 3. Files are in the order of their paths, classes
    numbered in the order of `classes`, by default the sorted names of the subfolders. labels: [n] int64. Hidden files,
    and files with other suffixes than `SUFFIXES`, are skipped.
    Raises FileError for a folder that is missing or contains no images, and for a subfolder that is not in `classes`;
    on reading, for an image of another shape or one that cannot be read, naming the file.
    """

    def __init__(self, folder: str | Path, shape: Sequence[int], classes: Sequence[str] | None = None):
        root = Path(folder)
        if not root.is_dir():
            raise FileError("images", "a folder with a folder of images per class", f"{str(root)!r}, which is none")
        with foreign(f"images: {root}", "a folder that can be read"):
            found = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        self.shape, self.classes = tuple(shape), tuple(found if classes is None else classes)
        strange = [name for name in found if name not in self.classes]
        if strange:
            raise FileError(f"images: {root}", f"classes among {', '.join(self.classes)}", ", ".join(strange))
        listed = [(number, path) for number, name in enumerate(self.classes) for path in _image_paths(root / name)]
        if not listed:
            raise FileError(f"images: {root}", f"a folder per class with {', '.join(SUFFIXES)} files", "none")
        self.paths = [path for _, path in listed]
        self.labels = np.array([number for number, _ in listed], np.int64)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.stack([self._image(self.paths[index]) for index in indices])

    def _image(self, path: Path) -> NDArray[np.uint8]:
        def fits(shape: tuple[int, ...]) -> None:
            if shape != self.shape:
                wanted, got = (" x ".join(map(str, each)) for each in (self.shape, shape))
                cure = "bring all images to one size, and say it in shape"
                raise FileError(str(path), f"an image of {wanted}", got, cure)

        return _read(path, self.shape[0] == 1, fits)


def read(path: str | Path, gray: bool = False) -> NDArray[np.uint8]:
    """Read an image file. -> [3, h, w] uint8, with `gray` [1, h, w].

    .npy: [h, w] or [h, w, channels] uint8. .pgm and .ppm: P5 and P6 with 255 as the largest value. Other formats are
    read with Pillow, which converts between color and gray; the formats above are returned as they are stored. 16 bits
    become 8, value / 257. Transparency is left out, and so is the orientation in EXIF data, as in torchvision; of
    several frames the first is read.
    Raises FileError for a file that cannot be read or is of another format, or if Pillow is needed and not installed.
    """
    return _read(Path(path), gray, lambda shape: None)


def _read(path: Path, gray: bool, fits: _Fits) -> NDArray[np.uint8]:
    # `fits` checks the shape in the header before memory for the pixels is allocated.
    reader = _READERS.get(path.suffix.lower(), _by_pillow)
    with opened(path, "images") as file:
        image = reader(path, file, gray, fits)
    return image[None] if image.ndim == 2 else np.moveaxis(image, 2, 0)


def _image_paths(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    visible = (path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return sorted(visible, key=lambda path: path.relative_to(folder).parts)


def _npy(path: Path, file: BinaryIO, gray: bool, fits: _Fits) -> NDArray[Any]:
    # NumPy parses the header as Python, which several threads at once must not do in Python 3.11 (cpython#106905).
    start = files.read(file, _HEAD)
    first = 8 + _LENGTHS.get(start[6:8], 0)
    end = first + int.from_bytes(start[8:first], "little")
    head = _NUMPY.fullmatch(start[first:end]) if start.startswith(_MAGIC) and end <= len(start) else None
    if head is None:
        raise FileError(str(path), "an image in NumPy's format", f"a file that begins with {start[:8]!r}")
    with foreign(str(path), "an image in NumPy's format"):
        dtype = np.dtype(head["dtype"].decode())
        shape = tuple(int(n) for n in head["shape"].split(b",") if n.strip())
    if dtype != np.uint8 or len(shape) not in (2, 3):
        raise FileError(str(path), "uint8 values [h, w] or [h, w, channels]", f"{dtype} {list(shape)}")
    fits((shape[2] if len(shape) == 3 else 1, *shape[:2]))
    flat = _pixels(path, file, start[end:], math.prod(shape))
    with foreign(str(path), "an image in NumPy's format"):
        return flat.reshape(shape, order="F" if head["order"] == b"True" else "C")


def _netpbm(path: Path, file: BinaryIO, gray: bool, fits: _Fits) -> NDArray[np.uint8]:
    start = files.read(file, _HEAD)
    head = _NETPBM.match(start)
    with foreign(str(path), "an image in Netpbm's format"):
        width, height, most = (int(head[i]) for i in (2, 3, 4)) if head else (0, 0, 0)
    if head is None or most != 255:
        raise FileError(str(path), "Netpbm's P5 or P6 with 255 as the largest value", repr(start[:16]))
    channels = 3 if head[1] == b"6" else 1
    fits((channels, height, width))
    flat = _pixels(path, file, start[head.end() :], width * height * channels)
    with foreign(str(path), "an image in Netpbm's format"):
        return flat.reshape(height, width, channels)


def _pixels(path: Path, file: BinaryIO, start: bytes, count: int) -> NDArray[np.uint8]:
    """`count` bytes of pixels, of which the first are in `start`. Raises FileError for fewer."""
    values = start[:count] + files.read(file, count - len(start))
    if len(values) < count:
        raise FileError(str(path), f"{count} bytes of pixels", f"{len(values)}")
    return np.frombuffer(values, np.uint8)


def _by_pillow(path: Path, file: BinaryIO, gray: bool, fits: _Fits) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        cure = "pip install 'ampkit[images]', or store the images as .npy or .ppm"
        raise FileError(str(path), f"Pillow to read {path.suffix}", "none installed", cure) from None
    with foreign(str(path), "an image"):
        image = Image.open(file)
    fits((1 if gray else 3, image.height, image.width))
    # Pillow allocates all the pixels that a header claims before it decodes the first.
    pixels, size = image.width * image.height, os.fstat(file.fileno()).st_size
    if pixels > max(_SMALL, _PIXELS_PER_BYTE * size):
        raise FileError(str(path), f"as many pixels as {size} bytes can hold", f"{pixels}")
    with foreign(str(path), "an image"), image:
        # 16 bits, by Pillow's version
        if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
            values = (np.asarray(image).astype(np.int64) + 128) // 257
            return values.astype(np.uint8) if gray else np.repeat(values.astype(np.uint8)[..., None], 3, 2)
        if image.mode in ("I", "F"):  # Pillow would cut their values off at 255
            cure = "store the image in 8 or 16 bits"
            raise FileError(str(path), "8 or 16 bits in each channel", f"Pillow's mode {image.mode!r}", cure)
        if image.mode == "P" and "transparency" in image.info:  # of which Pillow warns
            return np.asarray(image.convert("RGBA").convert("L" if gray else "RGB"))
        return np.asarray(image.convert("L" if gray else "RGB"))


_READERS: dict[str, Callable[[Path, BinaryIO, bool, _Fits], NDArray[Any]]] = {
    ".npy": _npy,
    ".ppm": _netpbm,
    ".pgm": _netpbm,
}


def load_splits(
    folder: str | Path,
    held_out: str | Path,
    shape: ImageShape,
    classes: Classes,
    mean: Channels = (0.5,),
    std: Spreads = (0.25,),
) -> Splits:
    """Images in a folder with one subfolder per class, read during training.

    folder: a directory with a folder per class, to train on. held_out: another, to evaluate on. shape: channels, height
    and width of every image. classes: the number of folders. mean, std: by channel, or one for all, of values in
    [0, 1].
    """
    train = ImageFolder(folder, shape)
    if len(train.classes) != classes:
        raise ConfigError("data.classes", f"{len(train.classes)}, the folders in {folder}", f"{classes}")
    test = ImageFolder(held_out, shape, train.classes)
    return Splits((train, train.labels), (test, test.labels), tuple(mean), tuple(std), train.classes)


def _check(data: Any, model: Any) -> Iterator[Fault]:
    for key, values in (("mean", data.mean), ("std", data.std)):
        if len(values) not in (1, data.shape[0]):
            yield Fault(f"data.{key}", f"1 number, or one for each of {data.shape[0]} channels", f"{len(values)}")


register_dataset("images", load_splits, "images", "images", check=_check)
