"""Image files: arrays of NumPy (.npy) and Netpbm's binary files (.ppm, .pgm) are read here, others by Pillow."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...base import files
from ...base.errors import FileError
from ...base.files import foreign, opened
from ..transforms.pillow import as_array, as_pillow
from . import by_pillow
from .by_pillow import Fits

# Of the last ones Pillow reads some only with a plugin: a file of a kind that nothing reads is named, not skipped.
SUFFIXES: tuple[str, ...] = (".npy", ".ppm", ".pgm", ".png", ".jpg", ".jpeg", ".bmp", ".webp")
SUFFIXES += (".gif", ".tif", ".tiff", ".jfif", ".avif", ".heic", ".heif")

_HEAD = 2**14  # bytes: more than NumPy writes, and comments enough for Netpbm

# Netpbm's P5 and P6: words apart by white space, comments from # to the end of a line, one white space, the bytes.
_GAP = rb"(?:\s++|#[^\n]*+\n)++"
_NETPBM = re.compile(rb"P([56])" + _GAP + rb"(\d{1,20})" + _GAP + rb"(\d{1,20})" + _GAP + rb"(\d{1,20})\s")

# NumPy's .npy: magic, version, length of the header, the header itself, padded with spaces to the end of a line.
_MAGIC, _LENGTHS = b"\x93NUMPY", {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}  # bytes of the length
_NUMPY = re.compile(
    rb"\{'descr': '(?P<dtype>[^']+)', 'fortran_order': (?P<order>True|False), "
    rb"'shape': \((?P<shape>(?:\d{1,20},? ?){0,64}+)\), *+\} *+\n"
)


def read(path: str | Path, gray: bool = False) -> NDArray[np.uint8]:
    """Read an image file. -> [3, h, w] uint8, with `gray` [1, h, w].

    .npy: [h, w] or [h, w, channels] uint8. .pgm and .ppm: P5 and P6 with 255 as the largest value. Other formats are
    read with Pillow, which converts between color and gray; the formats above are returned as they are stored. 16 bits
    become 8, value / 257. Transparency is left out. A photo is turned upright, as its EXIF orientation says.
    Raises FileError for a file that cannot be read or is of another format, for an animation, for more than Pillow's
    89 million pixels, or if Pillow is needed and not installed.
    """
    return np.moveaxis(as_array(load(Path(path), gray)), 2, 0)


def load(path: Path, gray: bool, fits: Fits = lambda shape: None) -> Any:
    """The image in a file as `read` reads it: an array [h, w, c] uint8, or an image of Pillow in mode RGB or L.

    fits: called with (channels, height, width) of the header, before memory for the pixels is allocated.
    """
    with opened(path, "images") as file:
        return _READERS.get(path.suffix.lower(), by_pillow.load)(path, file, gray, fits)


def load_with_channels(path: Path, channels: int) -> Any:
    """The image in a file as `load` reads it, with 1 or 3 channels whatever the file has."""
    image = load(path, channels == 1)
    if not isinstance(image, np.ndarray) or image.shape[2] == channels:
        return image
    if image.shape[2] not in (1, 3):
        cure = "save np.moveaxis(values, 0, 2): channels come last" if image.shape[0] in (1, 3) else None
        raise FileError(str(path), "an image of 1 or 3 channels", f"{list(image.shape)}", cure)
    return np.repeat(image, 3, 2) if channels == 3 else as_pillow(image, "images").convert("L")


def check(path: Path, pixels: bool) -> None:
    """Raise FileError where `load` would; `pixels`: decode them, instead of looking at the header and the end."""
    with opened(path, "images") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise FileError(str(path), "an image", "an empty file")
        reader = _READERS.get(path.suffix.lower())
        if reader is not None:
            reader(path, file, False, lambda shape: None)
        elif pixels or not by_pillow.is_whole(path, file):
            file.seek(0)
            by_pillow.load(path, file, False, lambda shape: None)


def need_readers(paths: Sequence[Path]) -> None:
    """Raise FileError, with the cure, if one of the files needs Pillow and there is none."""
    if (path := next((path for path in paths if path.suffix.lower() not in _READERS), None)) is not None:
        by_pillow.need(path)


def _npy(path: Path, file: BinaryIO, gray: bool, fits: Fits) -> NDArray[np.uint8]:
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
        got = f"{dtype} {list(shape)}"
        raise FileError(str(path), "uint8 values [h, w] or [h, w, channels]", got, _as_uint8(dtype, shape))
    fits((shape[2] if len(shape) == 3 else 1, *shape[:2]))
    flat = _pixels(path, file, start[end:], math.prod(shape))
    with foreign(str(path), "an image in NumPy's format"):
        values = flat.reshape(shape, order="F" if head["order"] == b"True" else "C")
    return values[..., None] if values.ndim == 2 else values


def _as_uint8(dtype: np.dtype[Any], shape: Sequence[int]) -> str | None:
    """How numbers become an image as files hold it."""
    if len(shape) not in (2, 3) or dtype.kind not in "biuf":
        return None
    if dtype.kind == "f":
        return "of values from 0 to 1 save (255 * values).round().astype(np.uint8); to learn from floats, use Parquet"
    return "of values from 0 to 255 save values.astype(np.uint8)" + (
        ", of 16 bits (values // 257).astype(np.uint8)" * (dtype.itemsize == 2)
    )


def _netpbm(path: Path, file: BinaryIO, gray: bool, fits: Fits) -> NDArray[np.uint8]:
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


_READERS: dict[str, Callable[[Path, BinaryIO, bool, Fits], Any]] = {
    ".npy": _npy,
    ".ppm": _netpbm,
    ".pgm": _netpbm,
}
