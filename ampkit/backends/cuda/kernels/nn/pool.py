"""Kernels of the poolings, over images and volumes, see `pooling`."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.backends.cuda.nvrtc import STORED
from ampkit.base.dtypes import DType, float32, uint8
from ampkit.core.autograd.saved import Saved
from ampkit.ops.argument_checks import int_tuple
from ampkit.ops.nn import pool
from ampkit.ops.nn.conv_geometry import batched

from .pool_windows import fits, gradient, lies_last, pooled

Array = Any


def _maximum(op: Any, axes: int) -> None:
    def forward(
        input: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, return_indices: bool,
        *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = pool.pool_geometry(op.name, input, kernel_size, stride, padding, dilation, ceil_mode, axes)
        if prod(w.kernel) > 255:
            return NotImplemented
        best, place = pooled("max_pool", input, w, dtype, place=True)
        saved = Saved(argmax=place, geometry=w, last=lies_last(batched(input, axes)))
        return ((best, pool.flat_indices(place, w)), saved) if return_indices else (best, saved)

    def backward(dy: Any, saved: Saved, needs: Any, **params: Any) -> Array:
        slope = dy[0] if type(dy) is tuple else dy
        return gradient("max_pool", slope, saved.geometry, saved, needs[0])

    register(op, forward, backward)


def _averages(op: Any, axes: int) -> None:
    def counted(padding: Any, count_include_pad: bool, override: Any) -> dict[str, Any]:
        # What decides by how much sums are divided: the padding that counts, and what is given instead.
        edge = int_tuple(op.name, "padding", padding, 0, axes) if count_include_pad else None
        return {"divisor": override or 0, "edge": edge}

    def forward(
        input: Array, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
        divisor_override: Any, *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = pool.pool_geometry(op.name, input, kernel_size, stride, padding, 1, ceil_mode, axes)
        out, _ = pooled("avg_pool", input, w, dtype, **counted(padding, count_include_pad, divisor_override))
        return out, Saved(geometry=w, last=lies_last(batched(input, axes)))

    def backward(
        dy: Array, saved: Saved, needs: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: Any,
    ) -> Array:  # fmt: skip
        given = counted(padding, count_include_pad, divisor_override)
        return gradient("avg_pool", dy, saved.geometry, saved, needs[0], **given)

    register(op, forward, backward)


def _back_fits(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
    slope, place = dy[0] if type(dy) is tuple else dy, getattr(saved, "argmax", None)
    known = slope.dtype in STORED and needs[0] in (slope.dtype, float32) and slope.size > 0
    return known and (place is None or place.dtype == uint8)


def register(op: Any, forward: Any, backward: Any) -> None:
    forward.__name__, backward.__name__ = f"{op.name}_cuda", f"{op.name}_backward_cuda"
    op.on("cuda", when=fits)(forward)
    op.on_backward("cuda", when=_back_fits)(backward)


for _axes in (2, 3):
    _maximum(getattr(pool, f"max_pool{_axes}d"), _axes)
    _averages(getattr(pool, f"avg_pool{_axes}d"), _axes)
