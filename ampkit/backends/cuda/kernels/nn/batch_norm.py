"""Kernels of batch norm: over images that lie channels-last or channels-first, and over rows of features.

In training three kernels: moments by many blocks, which are put together, then the answer; two passes over memory, and
two in the backward. The answer lies as the input does. A ReLU behind it is part of the last pass, and the backward
finds out anew from x what it let through. Not yet run on a GPU.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous, to_float32, vector_width
from ampkit.backends.cuda.nvrtc import C_NAMES, MAX_ELEMENTS, STORED, blocks_for, launch, typed
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.batch_norm import batch_norm_, update_running_statistics

Array = Any
THREADS = 256
BLOCKS = 1056  # that share out an array: eight for each multiprocessor of an H100
EACH = 8  # accesses of a thread, at least, before more blocks are used
RUN = 256  # accesses of a thread, at most, to add up one after the other


class Layout:
    """How an input [N, C, ...] lies, and how threads walk over it. last: whether the channels are its last axis."""

    def __init__(self, input: Array):
        self.shape, self.channels = input.shape, input.shape[1]
        alone = self.channels == 1 and input.flags.c_contiguous  # rows of one channel would be read one by one
        self.last = not alone and bool(np.moveaxis(input, 1, -1).flags.c_contiguous)
        self.values = input.size // self.channels
        self.samples = self.values if self.last else input.shape[0]
        self.spots = 1 if self.last else math.prod(input.shape[2:])

    def lie(self, array: Array) -> Array:
        """`array` or a copy of it, dense in this layout: [..., C] or [N, C, ...]."""
        return contiguous(np.moveaxis(array, 1, -1) if self.last else array)

    def empty(self, like: Array) -> Array:
        """New memory for an array of the input's shape and dtype, dense in this layout."""
        shape = (self.shape[0], *self.shape[2:], self.channels) if self.last else self.shape
        return backends.backend_of(like).empty(shape, like.dtype)

    def whole(self, array: Array) -> Array:
        """What `empty` made, as [N, C, ...]."""
        return np.moveaxis(array, -1, 1) if self.last else array

    def walk(self, *arrays: Array) -> tuple[int, int, int]:
        """Values at once, threads side by side, and how many blocks share out a channel."""
        at_once = vector_width(self.channels if self.last else self.spots, *arrays)
        if not self.last:
            packs = self.values // at_once
            return at_once, 1, _share(packs, THREADS, self.channels)
        packs = self.channels // at_once
        width = min(32, 1 << (packs - 1).bit_length())
        return at_once, width, _share(self.samples, THREADS // width, blocks_for(packs, width))

    def launch(self, name: str, how: tuple[int, int, int], *args: Any, held: int = 0) -> None:
        """Run a kernel over the arrays of this layout. held: numbers that a thread leaves for each of its channels."""
        at_once, width, share = how
        blocks = blocks_for(self.channels, at_once * width) if self.last else self.channels
        dtype = args[0].dtype
        entry = typed(name, C_NAMES[dtype], str(at_once), str(self.last).lower())
        sizes = map(np.uint32, (self.samples, self.channels, self.spots, width))
        shared = 4 * held * at_once * THREADS if self.last else 0
        launch("nn/batch_norm", entry, (blocks, share), THREADS, *args, *sizes, shared=shared)

    def parts(self, like: Array, how: tuple[int, int, int], numbers: int) -> Array:
        return backends.backend_of(like).empty((self.channels, how[2], numbers), float32)


def _share(accesses: int, threads: int, others: int) -> int:
    # How many blocks share out the accesses to a channel, where other channels have `others` blocks.
    wanted, needed = (blocks_for(accesses, threads * each) for each in (EACH, RUN))
    return max(1, min(wanted, BLOCKS // others), needed)


def _each(like: Array, count: int, channels: int) -> list[Array]:
    """So many vectors of a number per channel."""
    block = backends.backend_of(like).empty((count, channels), float32)
    return [block[i] for i in range(count)]


def _known(array: Array) -> bool:
    return array.dtype in STORED and 0 < array.size <= MAX_ELEMENTS


@batch_norm_.on("cuda", when=lambda input, *more, **params: _known(input))
def batch_norm_cuda(
    input: Array, weight: Array | None, bias: Array | None, running_mean: Array | None, running_var: Array | None,
    eps: float, relu: bool, *, dtype: DType,
) -> Any:  # fmt: skip
    if dtype != input.dtype:
        return NotImplemented
    layout, saved = Layout(input), Saved(input=input, weight=weight, running_mean=running_mean, running_var=running_var)
    x, out = layout.lie(input), layout.empty(input)
    how = layout.walk(x, out)
    if running_mean is None:
        var, scale, offset = _of_batch(layout, how, x, (to_float32(weight), to_float32(bias)), eps, saved)
    else:
        scale, offset = _given(layout, (to_float32(running_var), to_float32(weight), to_float32(bias)), eps, saved)
    layout.launch("batch_norm_forward", how, x, saved.shift, scale, offset, out, np.bool_(relu))
    whole = layout.whole(out)
    if relu:
        saved.bias, saved.gate = bias, (scale, offset)
    return (whole, saved) if running_mean is not None else (whole, saved.mean, var, saved)


def _of_batch(layout: Layout, how: Any, x: Array, scales: Any, eps: float, saved: Saved) -> tuple[Array, Array, Array]:
    """The variance of the batch, and the scale and offset of its answer; what the backward needs goes into `saved`."""
    parts, channels = layout.parts(x, how, 3), layout.channels
    layout.launch("batch_norm_moments", how, x, parts, held=3)
    found = _each(x, 7, channels)
    saved.mean, var, rstd, saved.shift, saved.slip, scale, offset = found
    sizes = np.int32(channels), np.int64(layout.spots), np.int32(how[2]), np.float32(eps)
    entry = typed("batch_norm_statistics", x.dtype)
    launch("nn/batch_norm", entry, blocks_for(channels, 4), 128, x, parts, *scales, *found, *sizes)
    saved.rstd = rstd.reshape(-1, 1)
    return var, scale, offset


def _given(layout: Layout, given: Any, eps: float, saved: Saved) -> tuple[Array, Array]:
    channels = layout.channels
    rstd, scale, offset = _each(given[0], 3, channels)
    sizes = np.int32(channels), np.float32(eps)
    launch(
        "nn/batch_norm", "batch_norm_coefficients", blocks_for(channels, 128), 128, *given, rstd, scale, offset, *sizes
    )
    saved.mean, saved.rstd = saved.running_mean, rstd.reshape(-1, 1)
    saved.shift, saved.slip = to_float32(saved.running_mean), None
    return scale, offset


def _back_fits(dy: Any, saved: Saved, needs: Any, eps: float, relu: bool) -> bool:
    slope, x = dy[0] if type(dy) is tuple else dy, saved.input
    known = "slip" in vars(saved) and _known(x) and slope.dtype == x.dtype
    return known and needs[0] in (None, x.dtype)


@batch_norm_.on_backward("cuda", when=_back_fits, wants_cache=True)
def batch_norm_backward_cuda(
    dy: Any, saved: Saved, needs: Any, eps: float, relu: bool, versions: Any, grad_buffers: Any
) -> Any:
    slope, *of_statistics = dy if type(dy) is tuple else (dy, None, None)
    layout = Layout(saved.input)
    slope, x = layout.lie(slope), layout.lie(saved.input)
    dx = layout.empty(saved.input) if needs[0] else None
    how = layout.walk(slope, x, *(() if dx is None else (dx,)))
    parts = layout.parts(x, how, 2)
    gate = saved.gate if relu else (None, None)  # scale and offset: what makes the answer of x
    layout.launch("batch_norm_grad_sums", how, slope, x, saved.shift, saved.slip, *gate, parts, held=2)
    sums = [_home(x, need, home, layout.channels) for need, home in zip(needs[1:3], grad_buffers[1:3], strict=True)]
    along, scale, bend, level = _each(x, 4, layout.channels)
    weight, dstatistics = to_float32(saved.weight), tuple(to_float32(d) for d in of_statistics)
    given = parts, weight, saved.rstd, saved.slip, *dstatistics, *sums, along, scale, bend, level
    sizes = np.int32(layout.channels), np.float32(layout.values), np.int32(how[2])
    launch("nn/batch_norm", "batch_norm_weight_backward", blocks_for(layout.channels, 4), 128, *given, *sizes)
    if dx is not None:
        bends = (None, None) if saved.slip is None else (bend, level)
        layout.launch("batch_norm_backward", how, slope, x, saved.shift, scale, *bends, gate[1], dx)
    each = [None if need is None else _as(found, need) for found, need in zip(sums, needs[1:3], strict=True)]
    return None if dx is None else layout.whole(dx), *each, *_running(saved, needs, sums[1], along, scale)


def _home(x: Array, need: DType | None, home: Any, channels: int) -> Array:
    taken = home is not None and need == float32 == home.dtype and home.shape == (channels,)
    return home if taken and home.flags.c_contiguous else backends.backend_of(x).empty((channels,), float32)


def _as(array: Array, dtype: DType) -> Array:
    return array if array.dtype == dtype else backends.backend_of(array).cast(array, dtype)


def _running(saved: Saved, needs: Any, total: Array, along: Array, scale: Array) -> tuple[Any, Any]:
    # The gradients of given statistics, which hardly anyone asks for.
    rstd = saved.rstd.reshape(-1)
    dmean = None if needs[3] is None else _as(-total * scale, needs[3])
    return dmean, None if needs[4] is None else _as(along * scale * rstd * rstd * np.float32(-0.5), needs[4])


def _updates(running_mean: Array, running_var: Array, mean: Array, var: Array, count: int, momentum: float) -> bool:
    arrays = running_mean, running_var, mean, var
    return mean.size > 0 and all(a.dtype == float32 and bool(a.flags.c_contiguous) for a in arrays)


@update_running_statistics.on("cuda", when=_updates)
def update_running_statistics_cuda(
    running_mean: Array, running_var: Array, mean: Array, var: Array, count: int, momentum: float
) -> None:
    numbers = map(np.float32, (1 - momentum, momentum, count / (count - 1)))
    args = running_mean, running_var, mean, var, np.int32(mean.size), *numbers
    launch("nn/batch_norm", "batch_norm_update", 1, min(1024, -(-mean.size // 32) * 32), *args)
