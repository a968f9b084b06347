"""CPU kernel of grid_sample (grid_sample.cpp)."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.channels_last import empty_channels_last, to_channels_last
from ampkit.backends.cpu.copies import contiguous, copy, reshaped
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import Function, HostArray, empty, reshape_view, supported
from ampkit.backends.cpu.resample import empty_images
from ampkit.base.dtypes import DType, float32
from ampkit.base.memory_format import channels_are_last
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.grid_sample import MODES, PADDINGS, grid_sample

_forward = Function("grid_sample_forward", "aaap")
_input_gradient = Function("grid_sample_input_gradient", "aaap")
_grid_gradient = Function("grid_sample_grid_gradient", "aaaap")
_FEW_CHANNELS = 4  # up to which samples side by side are faster than rows of channels


def _fits(input: HostArray, grid: HostArray, *more: Any) -> bool:
    return supported(input, grid) and input.size > 0 and grid.size > 0 and input.size < 1 << 31


@lru_cache(1024)
def _options(size: tuple[int, ...], mode: str, padding: str, corners: Any) -> HostArray:
    """What the kernels read: the numbers of mode and padding, align_corners, and depth, height and width.

    Held while they do: another thread may crowd it out of the cache.
    """
    three = (1,) * (3 - len(size)) + size
    return np.array([MODES.index(mode), PADDINGS.index(padding), bool(corners), *three], np.int64)


def _flat(images: HostArray) -> Any:
    """Images [N, C, *size] as [N, C, pixels]; a view if they allow one."""
    return reshaped(images, (*images.shape[:2], prod(images.shape[2:])))


def _flat_to_write(images: HostArray) -> HostArray:
    return reshape_view(images, (*images.shape[:2], prod(images.shape[2:])))


def _has_planes(images: HostArray) -> bool:
    return images.shape[1] <= _FEW_CHANNELS


def _stored(images: HostArray) -> HostArray:
    """Images in float32, as kernels read them: channels-last unless these are few."""
    return contiguous(in_format(images, float32)) if _has_planes(images) else to_channels_last(images, float32)


def _in_order_of(images: HostArray, gradient: HostArray, dtype: DType) -> HostArray:
    out = empty_images(images.shape, dtype, channels_are_last(images))
    copy(out, gradient)
    return out


def _points(grid: HostArray) -> Any:
    return reshaped(grid, (grid.shape[0], -1, grid.shape[-1]))


@grid_sample.on("cpu", when=_fits)
def grid_sample_cpu(input: HostArray, grid: HostArray, *options: Any, dtype: DType) -> Any:
    out, read = empty((*input.shape[:2], *grid.shape[1:-1]), dtype), _options(input.shape[2:], *options)
    _forward(_flat_to_write(out), _flat(_stored(input)), _points(grid), address(read))
    return out, Saved(input=input, grid=grid)


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, **options: Any) -> bool:
    return supported(dy) and _fits(saved.input, saved.grid)


@grid_sample.on_backward("cpu", when=_backward_fits)
def grid_sample_backward_cpu(dy: HostArray, saved: Saved, needs: Any, **options: Any) -> Any:
    x, grid, dx, dgrid = saved.input, saved.grid, None, None
    read = _options(x.shape[2:], *options.values())
    given = (_flat(dy), _points(grid), address(read))
    if needs[0]:
        total = (empty if _has_planes(x) else empty_channels_last)(x.shape, float32)
        _input_gradient(_flat_to_write(total), *given)
        dx = _in_order_of(x, total, needs[0])
    if needs[1] and options["mode"] == "nearest":
        dgrid = np.zeros(grid.shape, needs[1])
    elif needs[1]:
        dgrid = empty(grid.shape, needs[1])
        _grid_gradient(reshape_view(dgrid, given[1].shape), given[0], _flat(_stored(x)), *given[1:])
    return dx, dgrid
