"""Image files that Pillow reads."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...base.errors import FileError
from ...base.files import foreign
from ..transforms.pillow import need_pillow

# Called with the shape (channels, h, w); raises FileError for another than expected.
Fits = Callable[[tuple[int, ...]], None]

_SMALL, _PIXELS_PER_BYTE = 2**22, 2**14  # pixels; a single color in one bit each is packed half as closely
_ANIMATED = ("GIF", "PNG", "WEBP", "AVIF")  # a camera's file of several pictures is none
_ORIENTATION = 0x0112  # the EXIF tag
# What brings the orientations of EXIF 2.3, table 6, upright: the numbers of PIL.Image.Transpose.
_UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
_TAIL = 64  # bytes, in which the end of a whole file is looked for
_WARNINGS = threading.Lock()  # the filters of warnings belong to all threads


def need(path: Path) -> Any:
    """Pillow's module Image. Raises FileError, which names the file, where there is none."""
    return need_pillow(str(path), f"read {path.suffix}", ", or store the images as .npy or .ppm")


def load(path: Path, file: BinaryIO, gray: bool, fits: Fits) -> Any:
    """The upright image in an open file, as an image of Pillow in mode RGB, with `gray` L."""
    image, orientation = _opened(path, file)
    size = (image.height, image.width) if orientation < 5 else (image.width, image.height)
    fits((1 if gray else 3, *size))
    with foreign(str(path), "an image"), image:
        found = _in_8_bits(path, image)
        if found.mode == "P" and "transparency" in found.info:  # of which Pillow warns
            found = found.convert("RGBA")
        found = found.convert("L" if gray else "RGB")
        return found.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else found


def _opened(path: Path, file: BinaryIO) -> tuple[Any, int]:
    """An image of which the header is read, and its EXIF orientation; raises FileError for what cannot be an image."""
    module = need(path)
    with foreign(str(path), "an image"), _warnings_decided(module):
        try:
            image = module.open(file)
        except module.UnidentifiedImageError:
            raise FileError(str(path), "an image", "a file of no kind that Pillow reads") from None
        orientation = image.getexif().get(_ORIENTATION, 1) if _says_orientation(image) else 1
    if image.format in _ANIMATED and getattr(image, "is_animated", False):
        raise FileError(str(path), "a still image", f"an animation of {image.n_frames} frames")
    # Pillow allocates all the pixels that a header claims before it decodes the first.
    pixels, size = image.width * image.height, os.fstat(file.fileno()).st_size
    if pixels > max(_SMALL, _PIXELS_PER_BYTE * size):
        raise FileError(str(path), f"as many pixels as {size} bytes can hold", f"{pixels}")
    return image, orientation if isinstance(orientation, int) else 1


def _says_orientation(image: Any) -> bool:
    # Pillow turns a TIFF upright as it decodes it, and looks for the EXIF data of a PNG behind its pixels.
    return image.format != "TIFF" and (image.format != "PNG" or "exif" in image.info)


@contextmanager
def _warnings_decided(module: Any) -> Iterator[None]:
    """Within the block, too many pixels are an error, and a header with flaws that do not matter is no warning."""
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", module.DecompressionBombWarning)
        yield


def _in_8_bits(path: Path, image: Any) -> Any:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # 16 bits, by Pillow's version
        values = (np.asarray(image).astype(np.int64) + 128) // 257
        return need(path).fromarray(values.astype(np.uint8))
    if image.mode in ("I", "F"):  # Pillow would cut their values off at 255
        cure = "store the image in 8 or 16 bits"
        raise FileError(str(path), "8 or 16 bits in each channel", f"Pillow's mode {image.mode!r}", cure)
    return image


def is_whole(path: Path, file: BinaryIO) -> bool:
    """Whether the header of an open file is one of an image, and its end the end of its format.

    False where the format has no such end. Raises FileError for what cannot be an image.
    """
    image, _ = _opened(path, file)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    if image.format in ("JPEG", "MPO"):
        return b"\xff\xd9" in tail
    if image.format == "PNG":
        return b"IEND" in tail
    if image.format == "WEBP":
        file.seek(4)
        return int.from_bytes(file.read(4), "little") + 8 <= size
    return False
