"""CUDA kernels of max_pool and avg_pool over images [N, C, H, W] and volumes [N, C, D, H, W]; see `pool_windows`."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.backends.cuda.nvrtc import STORED
from ampkit.base.dtypes import Array, DType, float32, uint8
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.ops.argument_checks import int_tuple
from ampkit.ops.nn import pool
from ampkit.ops.nn.conv_geometry import batched

from .pool_windows import fits, gradient, is_channels_last, pooled


def _register_max_pool(op: Any, axes: int) -> None:
    def forward(
        input: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, return_indices: bool,
        *, dtype: DType,
    ) -> Any:  # fmt: skip
        geometry = pool.pool_geometry(op.name, input, kernel_size, stride, padding, dilation, ceil_mode, axes)
        if prod(geometry.kernel) > 255:  # a byte tells the position in a window
            raise UnsupportedError
        maxima, argmax = pooled("max_pool", input, geometry, dtype, return_argmax=True)
        saved = Saved(argmax=argmax, geometry=geometry, last=is_channels_last(batched(input, axes)))
        return ((maxima, pool.flat_indices(argmax, geometry)), saved) if return_indices else (maxima, saved)

    def backward(dy: Any, saved: Saved, needs: Any, **params: Any) -> Array:
        grad = dy[0] if type(dy) is tuple else dy
        return gradient("max_pool", grad, saved.geometry, saved, needs[0])

    register(op, forward, backward)


def _register_avg_pool(op: Any, axes: int) -> None:
    def divisor_args(padding: Any, count_include_pad: bool, override: Any) -> dict[str, Any]:
        # A window's sum is divided by divisor_override, or else by its elements; padding counts if asked for.
        counted_pad = int_tuple(op.name, "padding", padding, 0, axes) if count_include_pad else None
        return {"divisor": override or 0, "counted_pad": counted_pad}

    def forward(
        input: Array, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
        divisor_override: Any, *, dtype: DType,
    ) -> Any:  # fmt: skip
        geometry = pool.pool_geometry(op.name, input, kernel_size, stride, padding, 1, ceil_mode, axes)
        out, _ = pooled(
            "avg_pool", input, geometry, dtype, **divisor_args(padding, count_include_pad, divisor_override)
        )
        return out, Saved(geometry=geometry, last=is_channels_last(batched(input, axes)))

    def backward(
        dy: Array, saved: Saved, needs: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: Any,
    ) -> Array:  # fmt: skip
        options = divisor_args(padding, count_include_pad, divisor_override)
        return gradient("avg_pool", dy, saved.geometry, saved, needs[0], **options)

    register(op, forward, backward)


def _supports_backward(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
    grad, argmax = dy[0] if type(dy) is tuple else dy, getattr(saved, "argmax", None)
    known = grad.dtype in STORED and needs[0] in (grad.dtype, float32) and grad.size > 0
    return known and (argmax is None or argmax.dtype == uint8)


def register(op: Any, forward: Any, backward: Any) -> None:
    """Register both as the CUDA kernels of `op`, named after it."""
    forward.__name__, backward.__name__ = f"{op.name}_cuda", f"{op.name}_backward_cuda"
    op.on("cuda", when=fits)(forward)
    op.on_backward("cuda", when=_supports_backward)(backward)


for _axes in (2, 3):
    _register_max_pool(getattr(pool, f"max_pool{_axes}d"), _axes)
    _register_avg_pool(getattr(pool, f"avg_pool{_axes}d"), _axes)
