"""Images as Pillow's objects and as arrays [h, w, c]; whoever needs the other kind converts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import FileError, ShapeError

CURE = "pip install 'ampkit[images]'"


def need_pillow(where: str, what: str, more: str = "") -> Any:
    """Pillow's module Image. Raises FileError, with the command that installs it, where there is none."""
    try:
        from PIL import Image
    except ImportError:
        raise FileError(where, f"Pillow to {what}", "none installed", CURE + more) from None
    return Image


def as_pillow(image: Any, where: str) -> Any:
    """`image`, an array [h, w, c] uint8 or an image of Pillow, as one of Pillow in mode L or RGB."""
    if not isinstance(image, np.ndarray):
        return image
    if image.ndim != 3 or image.shape[2] not in (1, 3) or image.dtype != np.uint8:
        raise ShapeError(where, "an image of 1 or 3 channels, uint8", f"{image.dtype} {list(image.shape)} [h, w, c]")
    made = need_pillow(where, "change images")
    return made.fromarray(np.ascontiguousarray(image[..., 0] if image.shape[2] == 1 else image))


def as_array(image: Any) -> NDArray[np.uint8]:
    """An image of either kind as an array [h, w, c] uint8."""
    values: NDArray[np.uint8] = np.asarray(image)
    return values[..., None] if values.ndim == 2 else values


def size_of(image: Any) -> tuple[int, int]:
    """(height, width) of an image of either kind."""
    return image.shape[:2] if isinstance(image, np.ndarray) else (image.height, image.width)
