"""Functions of images: arrays and PIL images [H, W] or [H, W, C], or tensors [C, H, W]."""

from __future__ import annotations

from enum import Enum

import numpy as np
import torch


class InterpolationMode(Enum):
    """The names of interpolations; all of them take the nearest pixel here."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def to_tensor(image):
    """uint8 [H, W, C] -> float32 [C, H, W] in [0, 1]."""
    array = np.asarray(image)
    array = array[:, :, None] if array.ndim == 2 else array
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1), np.float32) / np.float32(255))


def normalize(image, mean, std):
    """(image - mean) / std by channels."""
    return (image - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]


def resize(image, size):
    """Take the nearest pixels of [h, w], or of the shorter side of one length."""
    array = np.asarray(image)
    height, width = array.shape[:2]
    if isinstance(size, int):
        size = (round(size * height / min(height, width)), round(size * width / min(height, width)))
    rows, columns = (np.arange(n) * length // n for n, length in zip(size, (height, width), strict=True))
    return array[rows][:, columns]


def center_crop(image, size):
    """Cut [h, w] out of the center."""
    array = np.asarray(image)
    size = (size, size) if isinstance(size, int) else size
    top, left = ((length - n) // 2 for n, length in zip(size, array.shape, strict=False))
    return array[top : top + size[0], left : left + size[1]]
