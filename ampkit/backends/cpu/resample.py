"""Separable linear maps of images (kernels/nn/interpolate.cpp): average pooling, interpolation, their gradients."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import DType
from ampkit.base.memory_format import channels_are_last

from .caching_allocator import address
from .channels_last import empty_channels_last, nhwc, to_channels_last
from .copies import copy
from .native.arrays import Function, HostArray, empty, reshape_view

_resample = Function("resample", "aaipppf")
_plane_means, _fill_planes = Function("plane_means", "aaf"), Function("fill_planes", "aaf")
_MOST_TAPS = 512  # along the width, and of the other axes together: so many numbers are added up in sequence


class AxisTaps(NamedTuple):
    """The taps of each output element along one axis of `old` input elements: indices and weights [T, new].

    Index `old` stands for no element.
    """

    indices: HostArray
    weights: HostArray
    old: int

    def transposed(self) -> AxisTaps:
        """The taps of the transpose."""
        new, there = self.indices.shape[1], np.flatnonzero(self.indices < self.old)
        order = there[np.argsort(self.indices.ravel()[there], kind="stable")]
        position = self.indices.ravel()[order]
        count = np.bincount(position, minlength=self.old)
        nth = np.arange(position.size) - (np.cumsum(count) - count)[position]
        index = np.full((max(int(count.max()), 1), self.old), new)
        weight = np.zeros(index.shape)
        index[nth, position], weight[nth, position] = order % new, self.weights.ravel()[order]
        return AxisTaps(index, weight, new)


class ImageMap(NamedTuple):
    """A map as the kernel reads it: lengths and taps of depth, height and width, their indices and weights.

    size: of its results. divisor: of every result. of_planes: the function for a map of whole planes, or None.
    """

    lengths: HostArray
    indices: HostArray
    weights: HostArray
    size: tuple[int, ...]
    divisor: float
    few_taps: bool
    of_planes: Function | None


def image_map(axes: Iterable[AxisTaps], divisor: float = 1.0) -> ImageMap:
    """The map of the trailing axes of images by these taps."""
    axes = tuple(axes)
    identity = AxisTaps(np.zeros((1, 1), np.int64), np.ones((1, 1)), 1)
    three = (*(identity,) * (3 - len(axes)), *axes)
    lengths = np.array([(taps.old, taps.indices.shape[1], taps.indices.shape[0]) for taps in three], np.int64)
    index = np.concatenate([taps.indices.ravel() for taps in three]).astype(np.int32)
    weight = np.concatenate([taps.weights.ravel() for taps in three]).astype(np.float32)
    counts = [len(taps.indices) for taps in three]
    few = max(counts[0] * counts[1], counts[2]) <= _MOST_TAPS
    size = tuple([taps.indices.shape[1] for taps in axes])
    return ImageMap(lengths, index, weight, size, float(divisor), few, _of_whole_planes(three))


def _of_whole_planes(axes: tuple[AxisTaps, ...]) -> Function | None:
    # The function for maps between planes and one number for each; None for any other map.
    if any((taps.weights != 1).any() or (taps.indices == taps.old).any() for taps in axes):
        return None
    if all(taps.indices.shape == (taps.old, 1) and (np.diff(taps.indices[:, 0]) == 1).all() for taps in axes):
        return _plane_means
    return _fill_planes if all(taps.old == 1 == len(taps.indices) for taps in axes) else None


def resample(images: HostArray, mapped: ImageMap, dtype: DType, last: bool | None = None) -> HostArray:
    """The map of images [N, C, *size], in `dtype` and the layout of the images, or channels-last if `last`."""
    last = channels_are_last(images) if last is None else last
    out = empty_images((*images.shape[:2], *mapped.size), dtype, last)
    if mapped.of_planes is not None and not last:
        mapped.of_planes(planes_to_write(out, last), planes(images, last), mapped.divisor)
        return out
    inner = images.shape[1] if last else 1
    tables = [address(table) for table in (mapped.lengths, mapped.indices, mapped.weights)]
    _resample(planes_to_write(out, last), planes(images, last), inner, *tables, mapped.divisor)
    return out


def empty_images(shape: tuple[int, ...], dtype: DType, last: bool) -> HostArray:
    """Uninitialized images, stored channels-last or in their order of axes."""
    return empty_channels_last(shape, dtype) if last else empty(shape, dtype)


def planes_to_write(images: HostArray, last: bool) -> Any:
    """`planes` of images that a kernel writes, as a view. Raises UnsupportedError where that takes a copy."""
    n, c, *size = images.shape
    return reshape_view(nhwc(images), (n, prod(size) * c)) if last else reshape_view(images, (n * c, prod(size)))


def planes(images: HostArray, last: bool) -> Any:
    """Images as rows of contiguous elements: [N, size * C] if channels-last, else [N * C, size]; a copy if need be."""
    if last:
        return nhwc(to_channels_last(images, images.dtype)).reshape(images.shape[0], -1)
    if not images.flags.c_contiguous:
        ordered = empty(images.shape, images.dtype)
        copy(ordered, images)
        images = ordered
    return images.reshape(images.shape[0] * images.shape[1], prod(images.shape[2:]))
