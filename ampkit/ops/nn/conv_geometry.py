"""Windows: the geometry that convolution and pooling share, and the two moves they are made of, unfold and fold.

Inside, images lie with the batch innermost, [C, H, W, N]: a row of a window is then one long run of memory, also for
small images, and one matrix product does a whole batch. Results are views of that with the axes as PyTorch orders them.
What is said of images here holds for sequences and volumes too, which have one axis or three in the place of H and W.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.arguments import shown
from ampkit.core.autograd.traced_array import apply
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..shape.axes import addressable, numbers_of
from ..shape.axes import pair as pair

__all__ = ["fold", "unfold"]

Axes: TypeAlias = tuple[int, ...]  # a number for each axis
Index: TypeAlias = tuple[Any, ...]

# Elements of columns built at a time: 16 MiB of float32, which stays in a last-level cache while its product runs.
BLOCK = 2**22
_ALL = slice(None)


class Windows(NamedTuple):
    """Where the windows of a kernel lie over images of one size; `pads` is (before, after) of each axis."""

    kernel: Axes
    stride: Axes
    dilation: Axes
    pads: tuple[tuple[int, int], ...]
    size: Axes

    @property
    def padded(self) -> Axes:
        """The size of an image with its padding."""
        return tuple([n + before + after for n, (before, after) in zip(self.size, self.pads, strict=True)])

    @property
    def count(self) -> Axes:
        """How many windows fit, by axis."""
        return _count(self)

    @property
    def pointwise(self) -> bool:
        """Whether each window is one pixel, each pixel one window."""
        return prod(self.kernel) == prod(self.stride) == 1 and self.padded == self.size

    @property
    def tall(self) -> Windows:
        """These windows; those of sequences over images of one row."""
        if len(self.size) > 1:
            return self
        return Windows((1, *self.kernel), (1, *self.stride), (1, *self.dilation), (_NONE, *self.pads), (1, *self.size))

    def taps(self, first: int = 0, end: int | None = None) -> tuple[tuple[Index, Index], ...]:
        """Per position in the kernel, [:, i, j], the padded pixels it meets in the windows of rows first..end."""
        return _taps(self, first, self.count[0] if end is None else end)

    def row_blocks(self, channels: int, batch: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows of windows whose columns fill about a BLOCK."""
        rows = self.count[0]
        step = max(1, BLOCK // max(1, channels * prod(self.kernel) * prod(self.count[1:]) * batch))
        return ((first, min(first + step, rows)) for first in range(0, rows, step))

    def crop(self, images: Array) -> Array:
        """Padded images [C, H, W, N] without their padding."""
        inside = [slice(before, before + n) for n, (before, _) in zip(self.size, self.pads, strict=True)]
        return images[(_ALL, *inside)]


_NONE = (0, 0)


@lru_cache(4096)
def _count(w: Windows) -> Axes:
    sides = zip(w.padded, w.kernel, w.stride, w.dilation, strict=True)
    return tuple([(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in sides])


@lru_cache(1024)
def _taps(w: Windows, first: int, end: int) -> tuple[tuple[Index, Index], ...]:
    sides = zip(w.kernel, w.stride, w.dilation, (first, *(0,) * len(w.size)), (end, *w.count[1:]), strict=False)
    met = [[slice(b * s + i * d, (e - 1) * s + i * d + 1, s) for i in range(k)] for k, s, d, b, e in sides]
    places = zip(product(*map(range, w.kernel)), product(*met), strict=True)
    return tuple([((_ALL, *at), (_ALL, *there)) for at, there in places])


def windows(
    where: str, kernel: Any, stride: Any, padding: Any, dilation: Any, size: Any, ceil: bool = False
) -> Windows:
    """The windows of an op's arguments over images of `size`: integers, or as many of them as there are axes.

    padding may be 'same', 'valid' or (before, after) by axis. ceil: where a stride leaves pixels over, one more window
    reaches beyond the edge, as in PyTorch's ceil_mode.
    Raises ArgumentError for an argument out of range, ShapeError if no window fits.
    """
    parts = [_plain(where, v) for v in (kernel, stride, padding, dilation, size)]
    return _windows(where, *parts, bool(ceil))


def _plain(where: str, value: Any) -> Any:
    # As what is looked up by: an integer, text, or a tuple of such.
    if isinstance(value, (list, tuple)):
        return tuple([_plain(where, each) for each in value])
    if not isinstance(value, (int, str, np.integer)):
        raise ArgumentError(where, "integers, or as many as there are axes", shown(value))
    return value


@lru_cache(4096)
def _windows(where: str, kernel: Any, stride: Any, padding: Any, dilation: Any, size: Any, ceil: bool) -> Windows:
    axes = len(size)
    kernel, stride = pair(where, "kernel_size", kernel, 1, axes), pair(where, "stride", stride, 1, axes)
    dilation = pair(where, "dilation", dilation, 1, axes)
    made = Windows(kernel, stride, dilation, _pads(where, padding, kernel, stride, dilation), size)
    made = _reaching_over(made) if ceil else made
    addressable(where, made.padded)
    if min(made.count) < 1:
        need = [d * (k - 1) + 1 - sum(p) for k, d, p in zip(kernel, dilation, made.pads, strict=True)]
        least, got = (" x ".join(map(str, sides)) for sides in (need, size))
        raise ShapeError(where, f"images of at least {least} for this kernel and padding", got)
    return made


def _pads(where: str, padding: Any, kernel: Axes, stride: Axes, dilation: Axes) -> tuple[tuple[int, int], ...]:
    axes = len(kernel)
    if padding == "valid":
        return (_NONE,) * axes
    if padding == "same":
        if max(stride) > 1:
            raise ArgumentError(where, "stride 1 with padding='same'", f"stride {stride}")
        spare = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple([(n // 2, n - n // 2) for n in spare])
    if isinstance(padding, str):
        raise ArgumentError(where, f"padding 'same', 'valid', {numbers_of(axes)}", repr(padding))
    if isinstance(padding, tuple) and len(padding) == axes and isinstance(padding[0], tuple):
        return tuple([pair(where, "padding", each, 0) for each in padding])  # type: ignore[misc]
    return tuple([(n, n) for n in pair(where, "padding", padding, 0, axes)])


def _reaching_over(w: Windows) -> Windows:
    # A window more where the last one would leave pixels over, unless it began beyond the image and its first padding.
    pads = []
    for n, k, s, d, (before, after) in zip(w.size, w.kernel, w.stride, w.dilation, w.pads, strict=True):
        left = (n + before + after - d * (k - 1) - 1) % s
        starts = (n + before + after - d * (k - 1) - 1) // s * s + s
        pads.append((before, after + s - left if left and starts < n + before else after))
    return w._replace(pads=tuple(pads))


# arrays


def batched(images: Array, axes: int = 2) -> Array:
    """Images [N, C, H, W], or one of them; axes: how many each has."""
    return images if images.ndim == axes + 2 else images.reshape(1, *images.shape)


def unbatched(images: Array, ndim: int) -> Array:
    """The first image, if what came was a single one, of `ndim` axes."""
    return images.reshape(images.shape[1:]) if ndim < images.ndim else images


def batch_last(images: Array) -> Array:
    """[N, C, H, W] -> [C, H, W, N]."""
    return images.transpose(*range(1, images.ndim), 0)


def batch_first(images: Array) -> Array:
    """[C, H, W, N] -> [N, C, H, W]."""
    return images.transpose(images.ndim - 1, *range(images.ndim - 1))


def tall(images: Array, axes: int) -> Array:
    """A batch of images, or a single one, with four axes at least: sequences become images of one row."""
    images = batched(images, axes)
    return images if axes > 1 else images.reshape(*images.shape[:2], 1, images.shape[2])


def flat(images: Array, ndim: int, axes: int) -> Array:
    """What `tall` made, with the `ndim` axes that it had."""
    images = images if axes > 1 else images.reshape(*images.shape[:2], images.shape[3])
    return unbatched(images, ndim)


def padded(images: Array, w: Windows, fill: float = 0) -> Array:
    """Images [N, C, H, W] -> [C, H, W, N] in memory, with `fill` around."""
    moved = batch_last(images)
    if w.padded == w.size:
        return moved if moved.flags.c_contiguous else moved.copy()
    home = np.full_like(moved, fill, shape=(len(moved), *w.padded, moved.shape[-1]), order="C")
    w.crop(home)[...] = moved
    return home


def columns_by_block(images: Array, w: Windows) -> Iterator[tuple[slice, Array]]:
    """The windows of images [N, C, H, W] as columns [C * kernel, windows * N], a block at a time, in one buffer."""
    source = padded(images, w)
    channels, batch, held = source.shape[0], source.shape[-1], None
    width = prod(w.count[1:]) * batch
    if w.pointwise:
        yield _ALL, source.reshape(channels, w.count[0] * width)
        return
    for first, end in w.row_blocks(channels, batch):
        shape = (channels, *w.kernel, end - first, *w.count[1:], batch)
        if held is None or held.shape != shape:
            held = np.empty_like(source, shape=shape, order="C")
        for at, there in w.taps(first, end):
            held[at] = source[there]
        part = slice(first * width, end * width)
        yield part, held.reshape(channels * prod(w.kernel), part.stop - part.start)


def add_columns(home: Array, columns: Array, w: Windows, first: int, end: int) -> None:
    """Add columns [C, KH, KW, rows, columns, N] of window rows first..end to the padded images they came from."""
    for at, there in w.taps(first, end):
        home[there] += columns[at]


# ops


@op(cast=Cast.KEEP, moves=True)
def unfold_(input: Array, w):
    """The windows `w` of images [N, C, H, W], or of one, as columns [N, C * kernel, windows]."""
    source = padded(batched(input, len(w.size)), w)
    channels, batch = source.shape[0], source.shape[-1]
    home = np.empty_like(source, shape=(channels, *w.kernel, *w.count, batch), order="C")
    for at, there in w.taps():
        home[at] = source[there]
    columns = home.reshape(channels * prod(w.kernel), prod(w.count), batch)
    return unbatched(columns.transpose(2, 0, 1), input.ndim + 1 - len(w.size)), Saved()


@unfold_.backward
def unfold_backward(dy, saved, needs, w):
    return apply(fold_, dy, w)


@op(cast=Cast.KEEP)
def fold_(input: Array, w):
    """The images whose windows `w` are the columns, overlapping values summed."""
    columns = batched(input, 1)
    batch, channels = len(columns), columns.shape[1] // prod(w.kernel)
    home = np.zeros_like(columns, shape=(channels, *w.padded, batch), order="C")
    add_columns(home, columns.transpose(1, 2, 0).reshape(channels, *w.kernel, *w.count, batch), w, 0, w.count[0])
    return unbatched(batch_first(w.crop(home)), input.ndim - 1 + len(w.size)), Saved()


@fold_.backward
def fold_backward(dy, saved, needs, w):
    return apply(unfold_, dy, w)


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The windows of images as columns (im2col).

    input [N, C, H, W] or [C, H, W] -> [N, C * kernel, windows] in the input's dtype. padding may also be 'same',
    'valid' or ((top, bottom), (left, right)). Raises ShapeError if no window fits.
    Chellapilla, Puri, Simard 2006, "High performance convolutional neural networks for document processing", sec. 3.
    """
    if input.ndim not in (3, 4):
        raise ShapeError("unfold", "input [N, C, H, W] or [C, H, W]", f"input {list(input.shape)}")
    w = windows("unfold", kernel_size, stride, padding, dilation, tuple(input.shape[-2:]))
    return unfold_(input, w)


def fold(
    input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """The images whose windows are columns, overlapping values summed (col2im): the transpose of `unfold`.

    input [N, C * kernel, windows] or [C * kernel, windows] -> [N, C, *output_size] in the input's dtype, summed in
    float32. Raises ShapeError if the columns are not those of such images.
    """
    w = windows("fold", kernel_size, stride, padding, dilation, pair("fold", "output_size", output_size, 1))
    kernel, total = prod(w.kernel), prod(w.count)
    if input.ndim not in (2, 3) or input.shape[-2] % kernel or input.shape[-1] != total:
        need = f"input [..., a multiple of {kernel}, {total}] for images {w.size}"
        raise ShapeError("fold", need, f"input {list(input.shape)}")
    return fold_(input, w)
