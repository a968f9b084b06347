"""Windows: the geometry that convolution and pooling share, and the two moves they are made of, unfold and fold.

Inside, images lie with the batch innermost, [C, H, W, N]: a row of a window is then one long run of memory, also for
small images, and one matrix product does a whole batch. Results are views of that with the axes as PyTorch orders them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..core.errors import ArgumentError, ShapeError
from ..core.op import Array, Saved, op
from ..core.policy import Cast
from ..core.replay import apply

__all__ = ["fold", "unfold"]

Pair: TypeAlias = tuple[int, int]

# Elements of columns built at a time: 16 MiB of float32, which stays in a last-level cache while its product runs.
BLOCK = 2**22


class Windows(NamedTuple):
    """Where the windows of a kernel lie over images of one size; `pads` is (before, after) of each axis."""

    kernel: Pair
    stride: Pair
    dilation: Pair
    pads: tuple[Pair, Pair]
    size: Pair

    @property
    def padded(self) -> Pair:
        """The size of an image with its padding."""
        (top, bottom), (left, right) = self.pads
        return self.size[0] + top + bottom, self.size[1] + left + right

    @property
    def count(self) -> Pair:
        """How many windows fit, by axis."""
        rows, columns = (
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(self.padded, self.kernel, self.stride, self.dilation, strict=True)
        )
        return rows, columns

    @property
    def pointwise(self) -> bool:
        """Whether each window is one pixel, each pixel one window."""
        return self.kernel == self.stride == (1, 1) and self.pads == _NONE

    def taps(self, first: int = 0, end: int | None = None) -> Iterator[tuple[int, int, slice, slice]]:
        """Per position (i, j) in the kernel, the padded rows and columns it meets in the windows of rows first..end."""
        (sh, sw), (dh, dw), (rows, columns) = self.stride, self.dilation, self.count
        last = (rows if end is None else end) - 1
        for i in range(self.kernel[0]):
            down = slice(first * sh + i * dh, last * sh + i * dh + 1, sh)
            for j in range(self.kernel[1]):
                yield i, j, down, slice(j * dw, j * dw + (columns - 1) * sw + 1, sw)

    def row_blocks(self, channels: int, batch: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows of windows whose columns fill about a BLOCK."""
        rows, columns = self.count
        step = max(1, BLOCK // max(1, channels * self.kernel[0] * self.kernel[1] * columns * batch))
        return ((first, min(first + step, rows)) for first in range(0, rows, step))

    def crop(self, images: Array) -> Array:
        """Padded images [..., H, W, N] without their padding."""
        (top, _), (left, _) = self.pads
        return images[..., top : top + self.size[0], left : left + self.size[1], :]


_NONE = ((0, 0), (0, 0))


def windows(
    where: str, kernel: Any, stride: Any, padding: Any, dilation: Any, size: Any, ceil: bool = False
) -> Windows:
    """The windows of an op's arguments, integers or pairs; padding may be 'same', 'valid' or (before, after) by axis.

    ceil: where a stride leaves pixels over, one more window reaches beyond the edge, as in PyTorch's ceil_mode.
    Raises ArgumentError for an argument out of range, ShapeError if no window fits.
    """
    parts = (tuple(v) if isinstance(v, list) else v for v in (kernel, stride, padding, dilation, size))
    return _windows(where, *parts, bool(ceil))


@lru_cache(4096)
def _windows(where: str, kernel: Any, stride: Any, padding: Any, dilation: Any, size: Any, ceil: bool) -> Windows:
    kernel, stride = pair(where, "kernel_size", kernel, 1), pair(where, "stride", stride, 1)
    dilation = pair(where, "dilation", dilation, 1)
    made = Windows(kernel, stride, dilation, _pads(where, padding, kernel, stride, dilation), (size[0], size[1]))
    made = _reaching_over(made) if ceil else made
    if min(made.count) < 1:
        need = [d * (k - 1) + 1 - sum(p) for k, d, p in zip(kernel, dilation, made.pads, strict=True)]
        images = f"images of at least {need[0]} x {need[1]} for this kernel and padding"
        raise ShapeError(where, images, f"{size[0]} x {size[1]}")
    return made


def _pads(where: str, padding: Any, kernel: Pair, stride: Pair, dilation: Pair) -> tuple[Pair, Pair]:
    if padding == "valid":
        return _NONE
    if padding == "same":
        if stride != (1, 1):
            raise ArgumentError(where, "stride 1 with padding='same'", f"stride {stride}")
        spare = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return (spare[0] // 2, spare[0] - spare[0] // 2), (spare[1] // 2, spare[1] - spare[1] // 2)
    if isinstance(padding, str):
        raise ArgumentError(where, "padding 'same', 'valid', an integer or a pair", repr(padding))
    if isinstance(padding, tuple) and len(padding) == 2 and isinstance(padding[0], tuple):
        return pair(where, "padding", padding[0], 0), pair(where, "padding", padding[1], 0)
    high, wide = pair(where, "padding", padding, 0)
    return (high, high), (wide, wide)


def pair(where: str, name: str, value: Any, least: int) -> Pair:
    """`value`, an integer for both axes or a pair. Raises ArgumentError for anything else, or below `least`."""
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    found = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    if len(found) != 2 or not all(isinstance(v, (int, np.integer)) and v >= least for v in found):
        raise ArgumentError(where, f"{name} as an integer or a pair of them, at least {least}", repr(value))
    return int(found[0]), int(found[1])


def _reaching_over(w: Windows) -> Windows:
    # A window more where the last one would leave pixels over, unless it began beyond the image and its first padding.
    pads = []
    for n, k, s, d, (before, after) in zip(w.size, w.kernel, w.stride, w.dilation, w.pads, strict=True):
        left = (n + before + after - d * (k - 1) - 1) % s
        starts = (n + before + after - d * (k - 1) - 1) // s * s + s
        pads.append((before, after + s - left if left and starts < n + before else after))
    return w._replace(pads=(pads[0], pads[1]))


# arrays


def batched(images: Array) -> Array:
    """Images [N, C, H, W], or one of them."""
    return images if images.ndim == 4 else images.reshape(1, *images.shape)


def unbatched(images: Array, ndim: int) -> Array:
    """The first image, if what came was a single one of `ndim` axes."""
    return images.reshape(images.shape[1:]) if ndim == 3 else images


def padded(images: Array, w: Windows, fill: float = 0) -> Array:
    """Images [N, C, H, W] -> [C, H, W, N] in memory, with `fill` around."""
    moved = images.transpose(1, 2, 3, 0)
    if w.pads == _NONE:
        return moved if moved.flags.c_contiguous else moved.copy()
    home = np.full_like(moved, fill, shape=(len(moved), *w.padded, moved.shape[3]), order="C")
    w.crop(home)[...] = moved
    return home


def columns_by_block(images: Array, w: Windows) -> Iterator[tuple[slice, Array]]:
    """The windows of images [N, C, H, W] as columns [C * kernel, windows * N], a block at a time, in one buffer."""
    source = padded(images, w)
    channels, _, _, batch = source.shape
    width, held = w.count[1], None
    if w.pointwise:
        yield slice(None), source.reshape(channels, source[0].size if channels else 0)
        return
    for first, end in w.row_blocks(channels, batch):
        shape = (channels, *w.kernel, end - first, width, batch)
        if held is None or held.shape != shape:
            held = np.empty_like(source, shape=shape, order="C")
        for i, j, down, across in w.taps(first, end):
            held[:, i, j] = source[:, down, across]
        part = slice(first * width * batch, end * width * batch)
        yield part, held.reshape(channels * w.kernel[0] * w.kernel[1], part.stop - part.start)


def add_columns(home: Array, columns: Array, w: Windows, first: int, end: int) -> None:
    """Add columns [C, KH, KW, rows, columns, N] of window rows first..end to the padded images they came from."""
    for i, j, down, across in w.taps(first, end):
        home[:, down, across] += columns[:, i, j]


# ops


@op(cast=Cast.KEEP, moves=True)
def unfold(input: Array, kernel_size, dilation=1, padding=0, stride=1):
    """The windows of images as columns (im2col).

    input [N, C, H, W] or [C, H, W] -> [N, C * kernel, windows] in the input's dtype. padding may also be 'same',
    'valid' or ((top, bottom), (left, right)). Raises ShapeError if no window fits.
    Chellapilla, Puri, Simard 2006, "High performance convolutional neural networks for document processing", sec. 3.
    """
    w = windows("unfold", kernel_size, stride, padding, dilation, input.shape[-2:])
    images = batched(input)
    source, (rows, columns) = padded(images, w), w.count
    channels, batch = len(source), len(images)
    home = np.empty_like(source, shape=(channels, *w.kernel, rows, columns, batch), order="C")
    for i, j, down, across in w.taps():
        home[:, i, j] = source[:, down, across]
    flat = home.reshape(channels * w.kernel[0] * w.kernel[1], rows * columns, batch).transpose(2, 0, 1)
    return unbatched(flat, input.ndim), Saved(windows=w)


@unfold.check
def unfold_check(input, kernel_size, dilation, padding, stride):
    if np.ndim(input) not in (3, 4):
        raise ShapeError("unfold", "input [N, C, H, W] or [C, H, W]", f"input {list(np.shape(input))}")


@unfold.backward
def unfold_backward(dy, saved, needs, kernel_size, dilation, padding, stride):
    return apply(fold, dy, saved.windows.size, kernel_size, dilation, padding, stride)


@op(cast=Cast.KEEP)
def fold(input: Array, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """The images whose windows are columns, overlapping values summed (col2im): the transpose of `unfold`.

    input [N, C * kernel, windows] or [C * kernel, windows] -> [N, C, *output_size] in the input's dtype, summed in
    float32. Raises ShapeError if the columns are not those of such images.
    """
    w = windows("fold", kernel_size, stride, padding, dilation, pair("fold", "output_size", output_size, 1))
    columns = input if input.ndim == 3 else input.reshape(1, *input.shape)
    batch, channels = len(columns), columns.shape[1] // (w.kernel[0] * w.kernel[1])
    home = np.zeros_like(columns, shape=(channels, *w.padded, batch), order="C")
    add_columns(home, columns.transpose(1, 2, 0).reshape(channels, *w.kernel, *w.count, batch), w, 0, w.count[0])
    images = w.crop(home).transpose(3, 0, 1, 2)
    return unbatched(images, input.ndim + 1), Saved(windows=w)


@fold.check
def fold_check(input, output_size, kernel_size, dilation, padding, stride):
    w = windows("fold", kernel_size, stride, padding, dilation, pair("fold", "output_size", output_size, 1))
    kernel, total = w.kernel[0] * w.kernel[1], w.count[0] * w.count[1]
    shape = np.shape(input)
    if len(shape) not in (2, 3) or shape[-2] % kernel or shape[-1] != total:
        need = f"input [..., a multiple of {kernel}, {total}] for images {w.size}"
        raise ShapeError("fold", need, f"input {list(shape)}")


@fold.backward
def fold_backward(dy, saved, needs, output_size, kernel_size, dilation, padding, stride):
    return apply(unfold, dy, kernel_size, dilation, padding, stride)
