"""Pooling: what it saves and returns; a backend gives the functions that pool images [N, C, *size]."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from ampkit.base.dtypes import Array, DType, uint8
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn import adaptive_pool, pool
from ampkit.ops.nn.conv_geometry import batched, unbatched

from .launcher import Launcher

MOST_PIXELS = 255  # of a window of which a byte tells the position of the maximum


class Pooling(NamedTuple):
    """How a backend pools.

    fits(input, ...): the predicate of the ops. readable(dy, size, needs): that of the backwards, to images of `size`.
    are_last(images): whether results are channels-last; gradients are, by `last`; None: not known.
    maxima(images, geometry, dtype, last) -> the maxima, and their positions in the windows, uint8;
    maxima_gradient(dy, positions, geometry, dtype, last). means(images, plan, dtype), means_gradient(dy, plan, dtype,
    last): of the windows of a plan, which is the backend's.
    """

    fits: Callable[..., bool]
    readable: Callable[..., bool]
    are_last: Callable[..., bool]
    maxima: Callable[..., tuple[Array, Array]]
    maxima_gradient: Callable[..., Array]
    means: Callable[..., Array]
    means_gradient: Callable[..., Array]


def register_pools(launcher: Launcher, pooling: Pooling, plan_of: Callable[..., Any]) -> None:
    """Register max_pool and avg_pool; plan_of(geometry, count_include_pad, divisor_override)."""
    for axes in (2, 3):
        _register_maximum(launcher, pooling, getattr(pool, f"max_pool{axes}d"), axes)
        _register_mean(launcher, pooling, plan_of, getattr(pool, f"avg_pool{axes}d"), axes)


def _register_maximum(launcher: Launcher, pooling: Pooling, op: Any, axes: int) -> None:
    _, readable, are_last, maxima, gradient, *_ = pooling

    def forward(
        input: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, return_indices: bool,
        *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = pool.pool_geometry(op.name, input, kernel_size, stride, padding, dilation, ceil_mode, axes)
        if prod(w.kernel) > MOST_PIXELS:
            raise UnsupportedError
        images = batched(input, axes)
        last = are_last(images)
        best, argmax = maxima(images, w, dtype, last)
        best, argmax = unbatched(best, input.ndim), unbatched(argmax, input.ndim)
        saved = Saved(argmax=argmax, geometry=w, last=last)
        return ((best, pool.flat_indices(argmax, w)), saved) if return_indices else (best, saved)

    def fits_backward(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
        grad = dy[0] if type(dy) is tuple else dy
        return saved.argmax.dtype == uint8 and readable(grad, saved.geometry.input_size, needs)

    def backward(dy: Any, saved: Saved, needs: Any, **params: Any) -> Array:
        grad, argmax = (batched(each, axes) for each in (dy[0] if type(dy) is tuple else dy, saved.argmax))
        dx = gradient(grad, argmax, saved.geometry, needs[0], getattr(saved, "last", None))
        return unbatched(dx, saved.argmax.ndim)

    launcher.on(op, forward, pooling.fits)
    launcher.on_small_backward(op, backward, fits_backward)


def _register_mean(launcher: Launcher, pooling: Pooling, plan_of: Callable[..., Any], op: Any, axes: int) -> None:
    _, readable, are_last, *_, means, gradient = pooling

    def forward(
        input: Array, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
        divisor_override: Any, *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = pool.pool_geometry(op.name, input, kernel_size, stride, padding, 1, ceil_mode, axes)
        images = batched(input, axes)
        out = means(images, plan_of(w, bool(count_include_pad), divisor_override), dtype)
        return unbatched(out, input.ndim), Saved(geometry=w, last=are_last(images))

    def backward(
        dy: Array, saved: Saved, needs: Any, count_include_pad: bool, divisor_override: Any, **params: Any
    ) -> Array:
        plan = plan_of(saved.geometry, bool(count_include_pad), divisor_override)
        return unbatched(gradient(batched(dy, axes), plan, needs[0], getattr(saved, "last", None)), dy.ndim)

    def fits_backward(dy: Array, saved: Saved, needs: Any, **params: Any) -> bool:
        return readable(dy, saved.geometry.input_size, needs)

    launcher.on(op, forward, pooling.fits)
    launcher.on_small_backward(op, backward, fits_backward)


def register_adaptive_places(launcher: Launcher, places: Callable[..., Array], fits: Callable[..., bool]) -> None:
    """Register where the maxima of adaptive_max_pool are. places(images, output_size) -> indices into the images."""

    def forward(input: Array, output_size: Any, *, dtype: DType) -> Array:
        return unbatched(places(batched(input, len(output_size)), output_size), input.ndim)

    launcher.on(adaptive_pool.adaptive_max_pool_, forward, fits)


def register_adaptive_mean(
    launcher: Launcher, pooling: Pooling, plan_of: Callable[..., Any], op: Any, axes: int
) -> None:
    """Register adaptive_avg_pool over `axes` axes; plan_of(size of the images, of the result)."""
    _, readable, are_last, *_, means, gradient = pooling

    def forward(input: Array, output_size: Any, *, dtype: DType) -> Any:
        size, images = input.shape[-axes:], batched(input, axes)
        out = means(images, plan_of(size, adaptive_pool.adaptive_size(output_size, size, op.name)), dtype)
        return unbatched(out, input.ndim), Saved(size=size, last=are_last(images))

    def backward(dy: Array, saved: Saved, needs: Any, output_size: Any) -> Array:
        plan = plan_of(saved.size, dy.shape[-axes:])
        return unbatched(gradient(batched(dy, axes), plan, needs[0], getattr(saved, "last", None)), dy.ndim)

    launcher.on(op, forward, pooling.fits)
    launcher.on_small_backward(op, backward, lambda dy, saved, needs, **params: readable(dy, saved.size, needs))
