"""CUDA kernels of adaptive pooling over images and volumes; see `pool_windows`."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cuda.launch import elementwise
from ampkit.backends.cuda.launch.reduction import Finish, reduced
from ampkit.base.dtypes import Array, DType
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn import adaptive_pool
from ampkit.ops.nn.conv_geometry import batched, unbatched

from .pool import register
from .pool_windows import adaptive_geometry, fits, gradient, is_channels_last, max_indices, pooled


def _global_means(input: Array, axes: int, dtype: DType) -> Array:
    return reduced("Add", input, tuple(range(-axes, 0)), True, dtype, Finish(prod(input.shape[-axes:])))


def _global_means_backward(dy: Array, saved: Saved, axes: int, dtype: DType) -> Array:
    grad, size = batched(dy, axes), saved.size
    order = (0, *range(2, axes + 2), 1) if saved.last else tuple(range(axes + 2))
    shape = tuple([(*grad.shape[:2], *size)[axis] for axis in order])
    dx = elementwise.forward("Div", (np.broadcast_to(grad.transpose(order), shape), float(prod(size))), dtype)
    return unbatched(dx.transpose(np.argsort(order).tolist()), dy.ndim)


def _register_adaptive_avg(op: Any, axes: int) -> None:
    def forward(input: Array, output_size: Any, *, dtype: DType) -> Any:
        size = input.shape[-axes:]
        out = adaptive_pool.adaptive_size(output_size, size, op.name)
        try:
            result = _global_means(input, axes, dtype) if out == (1,) * axes else None
        except UnsupportedError:  # of an array with gaps
            result = None
        if result is None:
            result, _ = pooled("avg_pool", input, adaptive_geometry(size, out), dtype, adaptive=True)
        return result, Saved(size=size, last=is_channels_last(batched(input, axes)))

    def backward(dy: Array, saved: Saved, needs: Any, output_size: Any) -> Array:
        if dy.shape[-axes:] == (1,) * axes:
            return _global_means_backward(dy, saved, axes, needs[0])
        geometry = adaptive_geometry(saved.size, dy.shape[-axes:])
        return gradient("avg_pool", dy, geometry, saved, needs[0], adaptive=True)

    register(op, forward, backward)


for _axes in (2, 3):
    _register_adaptive_avg(getattr(adaptive_pool, f"adaptive_avg_pool{_axes}d"), _axes)


@adaptive_pool.adaptive_max_pool_.on("cuda", when=fits)
def adaptive_max_pool_cuda(input: Array, output_size: Any, *, dtype: DType) -> Array:
    return max_indices(input, adaptive_geometry(input.shape[-len(output_size) :], output_size))
