"""Max unpooling, and pooling by a p-norm."""

from __future__ import annotations

from math import isfinite, prod
from typing import Any

import numpy as np

from ampkit.base.dtypes import float64
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.casts import cast
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_index_range, int_tuple
from ..creation.constants import full_like
from ..indexing.gather_scatter import scatter_
from ..named import named
from ..reduction.squares import is_out_of_range, scale_of
from ..shape.view import broadcast_to, flatten, reshape, squeeze, unsqueeze
from .pool import avg_pool2d, avg_pool3d, avg_pool_backward, check_images, pool_geometry

__all__ = ["lp_pool1d", "lp_pool2d", "lp_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d"]


def _max_unpool(
    axes: int, input: Tensor, indices: Tensor, kernel_size: Any, stride: Any, padding: Any, output_size: Any
) -> Tensor:
    where = f"max_unpool{axes}d"
    check_images(where, input, axes)
    if indices.shape != input.shape or indices.array.dtype.kind not in "iu":
        got = f"{indices.dtype.name} of shape {tuple(indices.shape)}"
        raise ShapeError(where, f"indices as integers of input's shape {tuple(input.shape)}", got)
    kernel, pads = int_tuple(where, "kernel_size", kernel_size, 1, axes), int_tuple(where, "padding", padding, 0, axes)
    steps = kernel if stride is None else int_tuple(where, "stride", stride, 1, axes)
    arguments = zip(input.shape[-axes:], kernel, steps, pads, strict=True)
    size = tuple([(n - 1) * s - 2 * p + k for n, k, s, p in arguments])
    if output_size is not None:
        size = _checked_size(where, size, steps, output_size)
    if min(size) < 1:
        raise ArgumentError(where, f"padding that leaves a pixel of {list(input.shape[-axes:])}", f"{pads}")
    check_index_range(where, indices.array, prod(size))
    zero = full_like(input[(..., *(slice(1),) * axes)], 0)
    zeros = broadcast_to(flatten(zero, -axes), (*input.shape[:-axes], prod(size)))
    out = scatter_(zeros, -1, flatten(indices, -axes), flatten(input, -axes))
    return reshape(out, (*input.shape[:-axes], *size))


def _checked_size(where: str, size: tuple[int, ...], stride: tuple[int, ...], output_size: Any) -> tuple[int, ...]:
    # output_size, which has to pool to the same shape as `size`, the smallest that does.
    asked = tuple(output_size)[-len(size) :] if isinstance(output_size, (tuple, list)) else ()
    near = [isinstance(a, int) and n - s < a < n + s for n, s, a in zip(size, stride, asked, strict=False)]
    if len(asked) != len(size) or not all(near):
        needs = f"output_size {size}, by less than the stride {stride} more or less"
        raise ArgumentError(where, needs, f"{output_size}")
    return asked


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """Scatter input [N, C, L] or [C, L] into zeros at the indices of max_pool1d; see `max_unpool2d`."""
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """Scatter input into zeros at the indices of `max_pool2d`: its inverse at the maxima.

    input [N, C, H, W] or [C, H, W], indices of its shape -> [N, C, *output_size], by default the smallest size that
    pools to [H, W]. Raises ArgumentError for a size that does not, RangeError for an index outside it.
    Zeiler, Fergus 2013, arXiv:1311.2901, sec. 2.1.
    """
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """Scatter input [N, C, D, H, W] or [C, D, H, W] into zeros at the indices of max_pool3d; see `max_unpool2d`."""
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size)


def _lp_pool(axes: int, doc: str) -> Op:
    name, mean = f"lp_pool{axes}d", {2: avg_pool2d, 3: avg_pool3d}[axes]

    def power_sums(
        x: Array, p: float, kernel_size: Any, stride: Any, ceil_mode: bool
    ) -> tuple[Array, Array, int, Array]:
        # (x / scale, the sum of its p-th powers in each window, the number of elements of a window, scale: 1 where
        # powers are in range).
        area = prod(int_tuple(name, "kernel_size", kernel_size, 1, axes))

        def total_of(each: Array) -> Array:
            return apply(mean, each**p, kernel_size, stride, 0, ceil_mode) * area

        total = total_of(x)
        if not _lost_powers(plain(x), plain(total), p):
            return x, total, area, 1
        wide = cast(x, float64)
        scale = scale_of(wide, None, p)
        return wide / scale, total_of(wide / scale), area, scale

    @op(cast=Cast.FP32, integers="refuse")
    @named(name, doc)
    def pool(input: Array, norm_type, kernel_size, stride=None, ceil_mode=False):
        _, total, _, scale = power_sums(input, norm_type, kernel_size, stride, ceil_mode)
        return cast(total ** (1 / norm_type) * scale, input.dtype), Saved(input=input)

    @pool.check
    def check(input, norm_type, kernel_size, stride, ceil_mode):
        check_images(name, input, axes)
        if not isinstance(norm_type, (int, float)) or not isfinite(norm_type) or not norm_type:
            raise ArgumentError(name, "norm_type as a number other than 0", repr(norm_type))

    @pool.backward
    def backward(dy, saved, needs, norm_type, kernel_size, stride, ceil_mode):
        x, total, area, _ = power_sums(saved.input, norm_type, kernel_size, stride, ceil_mode)
        zero = plain(total) == 0
        dtotal = np.where(zero, 0, dy) * np.where(zero, 1, total) ** (1 / norm_type - 1)
        geometry = pool_geometry(name, x, kernel_size, stride, 0, 1, ceil_mode, axes)
        of_mean = Saved(geometry=geometry)
        dpowers = avg_pool_backward(dtotal, of_mean, needs, kernel_size, stride, 0, ceil_mode, True, None)
        derivative = x ** (norm_type - 1)
        derivative = (
            np.where(plain(x) == 0, 0, derivative) if norm_type < 1 else derivative
        )  # as of `norm`, where it is infinite
        return cast(dpowers * (derivative * area), saved.input.dtype)

    return pool


def _lost_powers(x: Any, total: Any, p: float) -> bool:
    # Whether powers of numbers other than 0 over- or underflowed; a device is not asked.
    if not isinstance(total, np.ndarray) or not is_out_of_range(total):
        return False
    size = np.abs(x)
    most = size.max()
    bits = size.view(f"u{size.itemsize}") - 1  # in the order of the numbers, and for 0 the largest
    least = (bits.min() + 1).astype(bits.dtype).view(size.dtype)
    return bool(most) and is_out_of_range(np.array([least, most]) ** p)


lp_pool2d = _lp_pool(
    2,
    """The p-th root of each window's sum of p-th powers, p being norm_type: input [N, C, H, W] or [C, H, W].

    Computed in float32, rounded once. stride: by default the kernel. Where ceil_mode's last windows reach beyond the
    edge, missing elements count as the mean of the others, as in PyTorch. The gradient of a sum of 0 is 0.
    Raises ArgumentError for a norm_type that is 0 or not finite. Gulcehre et al. 2014, arXiv:1311.1780.
    """,
)
lp_pool3d = _lp_pool(
    3, "The p-th root of each window's sum of p-th powers: input [N, C, D, H, W] or [C, D, H, W]; see `lp_pool2d`."
)


def lp_pool1d(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The p-th root of each window's sum of p-th powers: input [N, C, L] or [C, L]; see `lp_pool2d`."""
    check_images("lp_pool1d", input, 1)
    (kernel,) = int_tuple("lp_pool1d", "kernel_size", kernel_size, 1, 1)
    step = kernel if stride is None else int_tuple("lp_pool1d", "stride", stride, 1, 1)[0]
    return squeeze(lp_pool2d(unsqueeze(input, -2), norm_type, (1, kernel), (1, step), ceil_mode), -2)
