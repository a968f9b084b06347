"""Images from a folder per class: `folder/cat/1.png`, `folder/dog/7.npy`, read when they are asked for.

Arrays of NumPy (.npy) and Netpbm's binary files (.ppm, .pgm) are read here; PNG, JPEG and others need Pillow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import FileError

SUFFIXES = (".npy", ".ppm", ".pgm", ".png", ".jpg", ".jpeg", ".bmp", ".webp")

# Netpbm's P5 and P6: words apart by white space, comments from # to the end of a line, one white space, the bytes.
_GAP = rb"(?:\s|#[^\n]*\n)+"
_NETPBM = re.compile(rb"P([56])" + _GAP + rb"(\d+)" + _GAP + rb"(\d+)" + _GAP + rb"(\d+)\s")

# NumPy's .npy: magic, version, length of the header, the header itself, padded with spaces to the end of a line.
_HEADER = re.compile(
    rb"\x93NUMPY[\x01-\x03]\x00.{2,4}?\{'descr': '(?P<dtype>[^']+)', 'fortran_order': (?P<order>True|False), "
    rb"'shape': \((?P<shape>[\d, ]*)\), *\} *\n",
    re.DOTALL,
)


class ImageFolder:
    """The images under `folder`, a folder per class, by number: folder[indices] is [b, *shape] uint8.

    shape: (channels, height, width) of each of them; channels 1 or 3. Files are in the order of their paths, classes
    numbered in the order of `classes`, by default the names of the folders, sorted. labels: [n] int64. Hidden files,
    and files of other kinds than `SUFFIXES`, are left out.
    Raises FileError for a folder that is missing or holds no images, and for a class that is not among `classes`; when
    an image is asked for, for one of another shape or one that cannot be read, naming the file.
    """

    def __init__(self, folder: str | Path, shape: Sequence[int], classes: Sequence[str] | None = None):
        root = Path(folder)
        if not root.is_dir():
            raise FileError("images", "a folder with a folder of images per class", f"{str(root)!r}, which is none")
        found = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        self.shape, self.classes = tuple(shape), tuple(found if classes is None else classes)
        strange = [name for name in found if name not in self.classes]
        if strange:
            raise FileError(f"images: {root}", f"classes among {', '.join(self.classes)}", ", ".join(strange))
        listed = [(number, path) for number, name in enumerate(self.classes) for path in _pictures(root / name)]
        if not listed:
            raise FileError(f"images: {root}", f"a folder per class with {', '.join(SUFFIXES)} files", "none")
        self.paths = [path for _, path in listed]
        self.labels = np.array([number for number, _ in listed], np.int64)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.stack([self._image(self.paths[index]) for index in indices])

    def _image(self, path: Path) -> NDArray[np.uint8]:
        image = read(path, gray=self.shape[0] == 1)
        if image.shape != self.shape:
            wanted, got = (" x ".join(map(str, shape)) for shape in (self.shape, image.shape))
            raise FileError(
                str(path), f"an image of {wanted}", got, "bring all images to one size, and say it in shape"
            )
        return image


def read(path: str | Path, gray: bool = False) -> NDArray[np.uint8]:
    """The image in a file. -> [3, h, w] uint8, with `gray` [1, h, w].

    .npy: [h, w] or [h, w, channels] uint8. .pgm and .ppm: P5 and P6 with 255 as the largest value. Others by Pillow,
    which also turns color into gray, or gray into color, as asked; the rest is given as it is stored.
    Raises FileError for a file that cannot be read or is of another kind, or that needs Pillow where there is none.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower(), _by_pillow)
    try:
        image = reader(path, gray)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(str(path), "an image", f"a file that cannot be read as one: {error}") from None
    if image.dtype != np.uint8 or image.ndim not in (2, 3):
        got = f"{image.dtype} {list(image.shape)}"
        raise FileError(str(path), "uint8 values [h, w] or [h, w, channels]", got)
    return image[None] if image.ndim == 2 else np.moveaxis(image, 2, 0)


def _pictures(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    visible = (path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return sorted(visible, key=lambda path: path.relative_to(folder).parts)


def _npy(path: Path, gray: bool) -> NDArray[Any]:
    # NumPy parses the header as Python, which several threads at once must not do in Python 3.11 (cpython#106905).
    content = path.read_bytes()
    head = _HEADER.match(content)
    if head is None or b"O" in head["dtype"]:
        raise ValueError(f"not an array of numbers in NumPy's format, {content[:8]!r}")
    shape = tuple(int(n) for n in head["shape"].split(b",") if n.strip())
    flat = np.frombuffer(content, np.dtype(head["dtype"].decode()), math.prod(shape), head.end())
    return flat.reshape(shape, order="F" if head["order"] == b"True" else "C")


def _netpbm(path: Path, gray: bool) -> NDArray[np.uint8]:
    content = path.read_bytes()
    head = _NETPBM.match(content)
    if head is None or int(head[4]) != 255:
        raise FileError(str(path), "Netpbm's P5 or P6 with 255 as the largest value", repr(content[:16]))
    width, height, channels = int(head[2]), int(head[3]), 3 if head[1] == b"6" else 1
    size = len(content) - head.end()
    if size < width * height * channels:
        raise FileError(str(path), f"{width * height * channels} bytes of pixels", f"{size}")
    return np.frombuffer(content, np.uint8, width * height * channels, head.end()).reshape(height, width, channels)


def _by_pillow(path: Path, gray: bool) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        cure = "pip install 'ampkit[images]', or store the images as .npy or .ppm"
        raise FileError(str(path), f"Pillow to read {path.suffix}", "none installed", cure) from None
    with Image.open(path) as image:
        return np.asarray(image.convert("L" if gray else "RGB"))


_READERS: dict[str, Callable[[Path, bool], NDArray[Any]]] = {".npy": _npy, ".ppm": _netpbm, ".pgm": _netpbm}
