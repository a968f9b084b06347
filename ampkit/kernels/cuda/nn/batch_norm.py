"""CUDA kernels of batch_norm over channels-first and channels-last images and over rows of features.

Training runs three kernels, two passes over memory: partial moments per block, their combination, the normalization;
the backward also makes two passes. The output has the memory layout of the input. A residual sum and a ReLU that follow
are fused into the last pass. The backward of ReLU recomputes from x where it was active; with a residual it reads the
output, and stores the gradient of the residual in its first pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import eq
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import cast, contiguous, supports_array, to_float32, vector_width
from ampkit.backends.cuda.launch.prologue_chains import launched
from ampkit.backends.cuda.launch.template_source import Template
from ampkit.backends.cuda.nvrtc import C_NAMES, blocks_for, launch, typed
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.norms import register_batch_norm

THREADS = 256
BLOCKS = 1056  # per launch: eight per multiprocessor of an H100
MIN_ACCESSES = 8  # per thread, before more blocks are used
RUN = 256  # accesses that a thread adds up serially, at most: bounds the rounding error


class Layout:
    """Memory layout of an input [N, C, ...] and the launch parameters that follow from it.

    last: whether it is channels-last; values: elements per channel. A kernel sees [samples, channels, spatial].
    """

    def __init__(self, input: Array):
        self.shape, self.channels = input.shape, input.shape[1]
        alone = self.channels == 1 and input.flags.c_contiguous  # channels-last, it would be read value by value
        self.last = not alone and bool(np.moveaxis(input, 1, -1).flags.c_contiguous)
        self.values = input.size // self.channels
        self.samples = self.values if self.last else input.shape[0]
        self.spatial = 1 if self.last else math.prod(input.shape[2:])

    def dense(self, array: Array) -> Array:
        """`array`, copied if needed, contiguous in this layout: as [N, ..., C] if channels-last, else [N, C, ...]."""
        return contiguous(np.moveaxis(array, 1, -1) if self.last else array)

    def empty(self, like: Array) -> Array:
        """Allocate an array of the input's size and `like`'s dtype, contiguous in this layout."""
        shape = (self.shape[0], *self.shape[2:], self.channels) if self.last else self.shape
        return backends.backend_of(like).empty(shape, like.dtype)

    def channels_second(self, array: Array) -> Array:
        """An array from `empty` as [N, C, ...], a view."""
        return np.moveaxis(array, -1, 1) if self.last else array

    def walk(self, *arrays: Array) -> tuple[int, int, int]:
        """Launch parameters: values per access, threads along the channels, blocks per channel."""
        vector = vector_width(self.channels if self.last else self.spatial, *arrays)
        if not self.last:
            accesses = self.values // vector
            return vector, 1, _share(accesses, THREADS, self.channels)
        accesses = self.channels // vector
        width = min(32, 1 << (accesses - 1).bit_length())
        return vector, width, _share(self.samples, THREADS // width, blocks_for(accesses, width))

    def launch(self, name: str, config: tuple[int, int, int], *args: Any, partials: int = 0) -> None:
        """Launch a kernel over this layout. partials: float32 values of shared memory per thread and channel."""
        vector, width, blocks_per_channel = config
        entry, shared = typed(name, args[0].dtype, vector, self.last), self.shared_bytes(vector, partials)
        grid = self.blocks(vector, width), blocks_per_channel
        launch("nn/batch_norm", entry, grid, THREADS, *args, *self.sizes(width), shared=shared)

    def blocks(self, vector: int, width: int) -> int:
        """Blocks of a launch, for each of those that share a channel."""
        return blocks_for(self.channels, vector * width) if self.last else self.channels

    def sizes(self, width: int) -> tuple[Any, ...]:
        """The last arguments of a kernel."""
        return tuple(map(np.uint32, (self.samples, self.channels, self.spatial, width)))

    def shared_bytes(self, vector: int, partials: int) -> int:
        """Of shared memory. partials: see `launch`."""
        return 4 * partials * vector * THREADS if self.last else 0

    def parts(self, like: Array, config: tuple[int, int, int], numbers: int) -> Array:
        """Allocate partial results: `numbers` float32 values per channel and block."""
        return backends.backend_of(like).empty((self.channels, config[2], numbers), float32)


def _share(accesses: int, threads: int, others: int) -> int:
    """Blocks per channel for so many accesses; `others`: blocks per launch if a channel had one."""
    wanted, needed = (blocks_for(accesses, threads * each) for each in (MIN_ACCESSES, RUN))
    return max(1, min(wanted, BLOCKS // others), needed)


def _channel_vectors(like: Array, count: int, channels: int) -> list[Array]:
    """Allocate `count` float32 vectors [channels]."""
    block = backends.backend_of(like).empty((count, channels), float32)
    return [block[i] for i in range(count)]


def _fits(input: Array, weight: Any, bias: Any, mean: Any, var: Any, residual: Array | None, *more: Any) -> bool:
    return supports_array(input) and (residual is None or residual.dtype == input.dtype)


def _normalized(
    input: Array, weight: Array | None, bias: Array | None, running: Any, residual: Array | None, eps: float,
    relu: bool, dtype: DType,
) -> Any:  # fmt: skip
    layout = Layout(input)
    x, out = layout.dense(input), layout.empty(input)
    added = () if residual is None else (layout.dense(residual),)
    config = layout.walk(x, out, *added)
    affine = to_float32(weight), to_float32(bias)
    if running is None:
        mean, var, rstd, center, centered_mean, scale, offset = _batch_stats(layout, config, x, affine, eps)
    else:
        (mean, var), centered_mean = running, None
        rstd, scale, offset = _coeffs(layout, (to_float32(var), *affine), eps)
        center = to_float32(mean)
    layout.launch("batch_norm_forward", config, x, *(added or (None,)), center, scale, offset, out, np.bool_(relu))
    more: dict[str, Any] = {"center": center, "centered_mean": centered_mean}
    if relu and not added:
        more["gate"] = scale, offset
    return layout.channels_second(out), mean, var, rstd, more


def _batch_stats(layout: Layout, config: Any, x: Array, affine: Any, eps: float) -> list[Array]:
    """Batch mean, variance, rstd, center, centered mean, scale and offset, each [C] float32."""
    parts, channels = layout.parts(x, config, 3), layout.channels
    layout.launch("batch_norm_moments", config, x, parts, partials=3)
    found = _channel_vectors(x, 7, channels)
    sizes = np.int32(channels), np.int64(layout.spatial), np.int32(config[2]), np.float32(eps)
    entry = typed("batch_norm_statistics", x.dtype)
    launch("nn/batch_norm", entry, blocks_for(channels, 4), 128, x, parts, *affine, *found, *sizes)
    return found


def _coeffs(layout: Layout, args: Any, eps: float) -> list[Array]:
    """1 / deviation, scale and offset [C] float32 from (running_var, weight, bias)."""
    channels = layout.channels
    found = _channel_vectors(args[0], 3, channels)
    sizes = np.int32(channels), np.float32(eps)
    launch("nn/batch_norm", "batch_norm_coefficients", blocks_for(channels, 128), 128, *args, *found, *sizes)
    return found


def _readable(grads: Any, saved: Saved, needs: Any) -> bool:
    x = saved.input
    known = "centered_mean" in vars(saved) and supports_array(x) and grads[0].dtype == x.dtype
    return known and {needs[0], needs[5]} <= {None, x.dtype}


class _Sums:
    """The kernels of the gradient: sums over channels, what follows from them, and the gradient of the input.

    Reads dy, x, out, center, centered_mean, gate (2), weight, rstd, dmean, dvar; stores dx, dresidual, the gradients of
    weight and bias, and sums with dy (2). See prologue_chains.KernelSequence.
    """

    title, backward, checks = "BatchNorm", True, False

    def __init__(self, layout: Layout, arrays: Sequence[Array], dtype: DType, rereads: bool):
        self.layout, self.grid, self.rereads = layout, layout.walk(*arrays), rereads
        vector, width, share = self.grid
        self.blocks, self.threads = (layout.blocks(vector, width), share), THREADS
        self.shared = layout.shared_bytes(vector, 2)
        self.template = template(dtype, vector, layout.last)

    def begin(self, reads: Sequence[Any], outs: Sequence[Any]) -> tuple[Any, ...]:
        _, x, out, *vectors = reads
        parts = self.layout.parts(x, self.grid, 2)
        return x, out, outs[1], *vectors[:4], parts, *self.layout.sizes(self.grid[1])

    def first(self, loaded: Array, own: tuple[Any, ...]) -> None:
        entry = typed("batch_norm_grad_sums", loaded.dtype, self.grid[0], self.layout.last)
        launch("nn/batch_norm", entry, self.blocks, THREADS, loaded, *own, shared=self.shared)

    def rest(self, reads: Sequence[Any], outs: Sequence[Any], own: tuple[Any, ...]) -> None:
        grad, x, _, center, centered_mean, _, offset, weight, rstd, *dstatistics = reads
        dx, dresidual, *sums, dot, scale = outs
        layout, parts = self.layout, own[7]
        x_coef, constant = _channel_vectors(x, 2, layout.channels)
        args = parts, weight, rstd, centered_mean, *dstatistics, *sums, dot, scale, x_coef, constant
        sizes = np.int32(layout.channels), np.float32(layout.values), np.int32(self.grid[2])
        launch("nn/batch_norm", "batch_norm_weight_backward", blocks_for(layout.channels, 4), 128, *args, *sizes)
        if dx is not None:
            grad = grad if dresidual is None else dresidual
            x_terms = (None, None) if centered_mean is None else (x_coef, constant)
            layout.launch("batch_norm_backward", self.grid, grad, x, center, scale, *x_terms, offset, dx)


@lru_cache(64)
def template(dtype: DType, vector: int, last: bool) -> Template:
    """The kernel of the sums over channels for chains."""
    name = C_NAMES[dtype]
    vectors = [f"const float* {each}" for each in ("center", "centered_mean", "scale", "offset")]
    sizes = [f"unsigned {each}" for each in ("samples", "channels", "spatial", "width")]
    own = [f"const {name}* x", f"const {name}* out", f"{name}* dresidual", *vectors, "GradSums* parts", *sizes]
    given = "x, out, dresidual, center, centered_mean, scale, offset, parts, Shape{{samples, channels, spatial, width}}"
    call = f"grad_sums<{vector}, {str(last).lower()}>({{loads}}, {given})"
    return Template("batch_norm_grad_sums", "batch_norm", call, ", ".join(own), "THREADS", vector)


def _gradients(
    grad: Array, dmean: Any, dvar: Any, saved: Saved, needs: Any, relu: bool, versions: Any, grad_buffers: Any
) -> Any:
    layout = Layout(saved.input)
    grad, x = layout.dense(grad), layout.dense(saved.input)
    dx = layout.empty(saved.input) if needs[0] else None
    out, dresidual = (layout.dense(saved.out), layout.empty(saved.input)) if "out" in vars(saved) else (None, None)
    gate = saved.gate if relu and out is None else (None, None)  # recompute what ReLU saw
    sums = [_sum_output(x, need, buf, layout.channels) for need, buf in zip(needs[1:3], grad_buffers[1:3], strict=True)]
    dot, scale = _channel_vectors(x, 2, layout.channels)
    arrays = [a for a in (grad, x, dx, out, dresidual) if a is not None]
    kernels = _Sums(layout, arrays, x.dtype, dresidual is None and dx is not None)
    vectors = saved.center, saved.centered_mean, *gate, to_float32(saved.weight), saved.rstd
    reads = grad, x, out, *vectors, to_float32(dmean), to_float32(dvar)
    launched(kernels, reads, (dx, dresidual, *sums, dot, scale))
    each = [None if need is None else cast(found, need) for found, need in zip(sums, needs[1:3], strict=True)]
    dx, dresidual = (None if d is None else layout.channels_second(d) for d in (dx, dresidual if needs[5] else None))
    return dx, *each, *_running_grads(saved, needs, sums[1], dot, scale), dresidual


def _sum_output(x: Array, need: DType | None, buffer: Any, channels: int) -> Array:
    """`buffer` if the gradient [C] can be written there in float32, else a new float32 vector."""
    fits = buffer is not None and need == float32 == buffer.dtype and buffer.shape == (channels,)
    return buffer if fits and buffer.flags.c_contiguous else backends.backend_of(x).empty((channels,), float32)


def _running_grads(saved: Saved, needs: Any, total: Array, dot: Array, scale: Array) -> tuple[Any, Any]:
    """The gradients of running_mean and running_var in `needs`, rarely asked for; None where not needed."""
    if queue.waiting and (needs[3], needs[4]) != (None, None):
        queue.flush((total, dot, scale))
    rstd = saved.rstd.reshape(-1)
    dmean = None if needs[3] is None else cast(-total * scale, needs[3])
    return dmean, None if needs[4] is None else cast(dot * scale * rstd * rstd * np.float32(-0.5), needs[4])


def _can_update(running_mean: Array, running_var: Array, mean: Array, var: Array, count: int, momentum: float) -> bool:
    arrays = running_mean, running_var, mean, var
    return mean.size > 0 and all(a.dtype == float32 and bool(a.flags.c_contiguous) for a in arrays)


def _updated(
    running_mean: Array, running_var: Array, mean: Array, var: Array, unbiased: float, momentum: float
) -> None:
    numbers = map(np.float32, (1 - momentum, momentum, unbiased))
    args = running_mean, running_var, mean, var, np.int32(mean.size), *numbers
    launch("nn/batch_norm", "batch_norm_update", 1, min(1024, -(-mean.size // 32) * 32), *args)


register_batch_norm(
    "cuda",
    _normalized,
    _gradients,
    _fits,
    _readable,
    _updated,
    _can_update,
    dtypes=eq,
    wants_cache=True,
    launches=True,
)
