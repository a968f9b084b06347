"""Regions of images, as detectors use them: suppression of overlapping boxes, and features of boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.arguments import shown
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.policy import autocast
from ampkit.core.tensor import Tensor

from ..creation.constants import full
from ..creation.ranges import arange
from ..linalg.matmul import matmul
from ..pointwise.conversion import to
from ..pointwise.piecewise_activations import relu
from ..shape.join_split import cat

__all__ = ["nms", "roi_align"]


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The boxes that stay when each, from the highest score down, suppresses those that overlap it by more.

    boxes [N, 4]: (x1, y1, x2, y2) with x1 <= x2 and y1 <= y2, scores [N] -> their indices [K] int64 by falling scores;
    of equal scores the first comes first. Overlap: intersection over union, in float32 (float64 for float64 boxes).
    Computed on the CPU, with no gradient. Raises ShapeError for other shapes.
    The function of torchvision.ops; Felzenszwalb, Girshick, McAllester, Ramanan 2010, sec. 7.2.
    """
    if boxes.ndim != 2 or boxes.shape[1] != 4 or tuple(scores.shape) != (boxes.shape[0],):
        got = f"{list(boxes.shape)} and {list(scores.shape)}"
        raise ShapeError("nms", "boxes [N, 4] and scores [N]", got)
    wide = boxes.array.dtype == np.float64
    corners, ranks = (each.detach().cpu().to("float64" if wide else "float32").numpy() for each in (boxes, scores))
    left = np.argsort(-ranks, kind="stable")
    x1, y1, x2, y2 = corners.T
    areas = (x2 - x1) * (y2 - y1)
    kept: list[int] = []
    while left.size:
        first, left = int(left[0]), left[1:]
        kept.append(first)
        width = np.minimum(x2[left], x2[first]) - np.maximum(x1[left], x1[first])
        height = np.minimum(y2[left], y2[first]) - np.maximum(y1[left], y1[first])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        with np.errstate(divide="ignore", invalid="ignore"):  # boxes without an area
            left = left[~(shared / (areas[left] + areas[first] - shared) > iou_threshold)]
    from ampkit.core.tensor_factory import tensor

    return tensor(np.array(kept, np.int64), device=boxes.device)


def roi_align(
    input: Tensor, boxes: Any, output_size: int | Sequence[int], spatial_scale: float = 1.0, sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:  # fmt: skip
    """The mean of bilinear samples of `input` in each cell of a grid over each box.

    input [N, C, H, W]; boxes [K, 5]: the number of an image and (x1, y1, x2, y2), or a list of N tensors [L, 4]
    -> [K, C, *output_size] in the dtype of input. spatial_scale: of the coordinates of boxes into those of input.
    sampling_ratio: samples of a cell along each axis; 0 or less: the length of the cell, rounded up. aligned: the
    centers of pixels are at 0.5, instead of 0; else a box is at least 1 wide and high. Computed in float32, under
    autocast too; the gradient is that of input. Raises ShapeError for other shapes, RangeError for images that are not
    there.
    The function of torchvision.ops; He, Gkioxari, Dollar, Girshick 2017, arXiv:1703.06870, sec. 3.
    """
    rows, cols = _sizes(output_size)
    regions = _with_images(boxes)
    if input.ndim != 4 or regions.ndim != 2 or regions.shape[1] != 5:
        needs = "input [N, C, H, W] and boxes [K, 5], or a list of boxes [L, 4]"
        raise ShapeError("roi_align", needs, f"{list(input.shape)} and {list(regions.shape)}")
    if not input.is_floating_point():
        raise DTypeError("roi_align", "a floating-point input", input.dtype.name)
    compute = "float64" if input.array.dtype == np.float64 else "float32"
    number, channels, height, width = input.shape
    images = regions.detach()[:, 0].cpu().numpy().astype(np.int64)
    if images.size and not 0 <= images.min() <= images.max() < number:
        raise RangeError("roi_align", f"images from 0 to {number - 1}", f"{images.min()} to {images.max()}")
    with autocast(enabled=False):
        features, corners = to(input, dtype=compute), to(regions.detach()[:, 1:], dtype=compute) * spatial_scale
        with no_grad():
            offset = 0.5 if aligned else 0.0
            down = _weights(corners[:, 1] - offset, corners[:, 3] - offset, rows, height, sampling_ratio, aligned)
            across = _weights(corners[:, 0] - offset, corners[:, 2] - offset, cols, width, sampling_ratio, aligned)
        parts, order = [features.new_zeros(0, channels, rows, cols)], []
        for image in np.unique(images).tolist():
            chosen = np.flatnonzero(images == image).tolist()
            order += chosen
            pixels = features[image].permute(1, 0, 2).reshape(height, channels * width)
            lines = matmul(down[chosen].reshape(-1, height), pixels).reshape(len(chosen), rows * channels, width)
            cells = matmul(lines, across[chosen].transpose(1, 2)).reshape(len(chosen), rows, channels, cols)
            parts.append(cells.permute(0, 2, 1, 3))
        found = cat(parts)[np.argsort(order).tolist()] if order else parts[0]
        return to(found, dtype=input.dtype)


def _sizes(output_size: Any) -> tuple[int, int]:
    sizes = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
    if len(sizes) != 2 or min(sizes) < 1:
        raise ArgumentError("roi_align", "output_size of at least 1", repr(output_size))
    return sizes


def _with_images(boxes: Any) -> Tensor:
    """Boxes with the number of their image in front."""
    if isinstance(boxes, Tensor):
        return boxes
    if not isinstance(boxes, (list, tuple)) or not all(isinstance(each, Tensor) for each in boxes):
        raise DTypeError("roi_align", "boxes as a Tensor, or a list of them", shown(boxes))
    if not all(each.ndim == 2 and each.shape[1] == 4 for each in boxes):
        raise ShapeError("roi_align", "a list of boxes [L, 4]", f"{[list(each.shape) for each in boxes]}")
    numbered = [
        cat([full((len(each), 1), i, dtype=each.dtype, device=each.device), each], 1) for i, each in enumerate(boxes)
    ]
    return cat(numbered)


def _weights(start: Tensor, end: Tensor, cells: int, length: int, sampling_ratio: int, aligned: bool) -> Tensor:
    """The weight of each pixel of an axis in each cell, [K, cells, length]: a mean of hats around the samples."""
    extent = end - start if aligned else (end - start).clamp(min=1.0)
    cell = extent / cells
    if sampling_ratio > 0:
        counts = full((len(start),), float(sampling_ratio), dtype=start.dtype, device=start.device)
    else:
        counts = cell.ceil()
    most = max(int(counts.max().item()), 1) if len(start) else 1
    sample = arange(most, dtype=start.dtype, device=start.device)
    grid = arange(cells, dtype=start.dtype, device=start.device)
    step = (cell / counts.clamp(min=1.0)).reshape(-1, 1, 1)
    places = start.reshape(-1, 1, 1) + grid.reshape(-1, 1) * cell.reshape(-1, 1, 1) + (sample + 0.5) * step
    counted = (places >= -1.0) & (places <= length) & (sample < counts.reshape(-1, 1, 1))
    pixels = arange(length, dtype=start.dtype, device=start.device)
    hats = relu(1.0 - (places.clamp(0.0, length - 1.0).unsqueeze(-1) - pixels).abs())
    return (hats * counted.unsqueeze(-1).to(start.dtype)).sum(2) / counts.clamp(min=1.0).reshape(-1, 1, 1)
