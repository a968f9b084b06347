"""The geometry of a kernel that slides over inputs: what convolutions, pooling, their kernels and libraries share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias

Axes: TypeAlias = tuple[int, ...]  # a number for each axis
Index: TypeAlias = tuple[Any, ...]

# Elements of columns built at a time: 16 MiB of float32, which stays in a last-level cache while its product runs.
BLOCK = 2**22
_ALL, _NONE = slice(None), (0, 0)


class ConvGeometry(NamedTuple):
    """A kernel that slides over inputs of one size; `padding` is (before, after) of each axis."""

    kernel: Axes
    stride: Axes
    dilation: Axes
    padding: tuple[tuple[int, int], ...]
    input_size: Axes

    @property
    def padded_size(self) -> Axes:
        """The size of an input with its padding."""
        return tuple([n + before + after for n, (before, after) in zip(self.input_size, self.padding, strict=True)])

    @property
    def output_size(self) -> Axes:
        """The number of windows along each axis."""
        return _output_size(self)

    @property
    def pointwise(self) -> bool:
        """Whether each window is one pixel and each pixel one window."""
        return prod(self.kernel) == prod(self.stride) == 1 and self.padded_size == self.input_size

    @property
    def reads_all(self) -> bool:
        """Whether every pixel of an input is in a window."""
        return _reads_all(self)

    @property
    def as_2d(self) -> ConvGeometry:
        """The same geometry; for sequences, over images of one row."""
        if len(self.input_size) > 1:
            return self
        kernel, stride, dilation, padding, size = self
        return ConvGeometry((1, *kernel), (1, *stride), (1, *dilation), (_NONE, *padding), (1, *size))

    def taps(self, first: int = 0, end: int | None = None) -> tuple[tuple[Index, Index], ...]:
        """For each position in the kernel, (its index [:, i, j], the slice of the padded input that it reads).

        first, end: the rows of the output to cover, by default all.
        """
        return _taps(self, first, self.output_size[0] if end is None else end)

    def row_blocks(self, channels: int, batch: int) -> Iterator[tuple[int, int]]:
        """Ranges (first, end) of output rows whose im2col columns have about BLOCK elements."""
        rows = self.output_size[0]
        step = max(1, BLOCK // max(1, channels * prod(self.kernel) * prod(self.output_size[1:]) * batch))
        return ((first, min(first + step, rows)) for first in range(0, rows, step))

    def batch_blocks(self, batch: int, channels: int) -> Iterator[slice]:
        """Ranges of images whose im2col columns have at most BLOCK elements, or single images."""
        step = max(1, BLOCK // max(1, channels * prod(self.kernel) * prod(self.output_size)))
        return (slice(first, first + step) for first in range(0, batch, step))

    def crop(self, images: Any) -> Any:
        """Padded images [C, H, W, N], an array, without their padding."""
        inside = [slice(before, before + n) for n, (before, _) in zip(self.input_size, self.padding, strict=True)]
        return images[(_ALL, *inside)]


@lru_cache(4096)
def _output_size(geometry: ConvGeometry) -> Axes:
    axes = zip(geometry.padded_size, geometry.kernel, geometry.stride, geometry.dilation, strict=True)
    return tuple([(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in axes])


@lru_cache(4096)
def _reads_all(geometry: ConvGeometry) -> bool:
    axes = zip(*geometry, geometry.output_size, strict=True)
    return all(
        {i * d + o * s - before for i in range(k) for o in range(outputs)}.issuperset(range(n))
        for k, s, d, (before, _), n, outputs in axes
    )


@lru_cache(1024)
def _taps(geometry: ConvGeometry, first: int, end: int) -> tuple[tuple[Index, Index], ...]:
    kernel, stride, dilation, _, size = geometry
    starts, ends = (first, *(0,) * len(size)), (end, *geometry.output_size[1:])
    axes = zip(kernel, stride, dilation, starts, ends, strict=False)
    read = [[slice(b * s + i * d, (e - 1) * s + i * d + 1, s) for i in range(k)] for k, s, d, b, e in axes]
    taps = zip(product(*map(range, kernel)), product(*read), strict=True)
    return tuple([((_ALL, *tap), (_ALL, *pixels)) for tap, pixels in taps])
