"""CPU kernel of grid_sample (grid_sample.cpp): coordinates and weights as the reference has them, pixels by C++."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, Function, HostArray, empty, supported
from ampkit.backends.cpu.resample import planes
from ampkit.base.dtypes import DType, float32, int32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.grid_sample import grid_sample, taps_of_samples

_forward = Function("grid_sample_forward", "aaaai")
_input_gradient = Function("grid_sample_input_gradient", "aaaai")
_weight_gradient = Function("grid_sample_weight_gradient", "aaaai")


def _fits(input: HostArray, grid: HostArray, *more: Any) -> bool:
    return supported(input, grid) and input.size > 0 and grid.size >= MIN_ELEMENTS and input.size < 1 << 31


def _taps(input: HostArray, grid: HostArray, *options: Any) -> tuple[HostArray, HostArray, list[Any]]:
    """(index, weight [taps, N * S], per tap the weights and their derivatives along each axis)."""
    found = list(taps_of_samples(input.shape, in_format(grid, float32), *options))
    index = np.stack([np.where(inside, row, -1) for row, inside, *_ in found]).astype(int32)
    weight = np.stack([prod(weights[1:], start=weights[0]) for _, _, weights, _ in found])
    return index, in_format(weight, float32), [each[2:] for each in found]


def _planes(images: HostArray) -> Any:
    """[N, C, *size] -> [N * C, pixels], contiguous, in float32."""
    return planes(in_format(images, float32), False)


@grid_sample.on("cpu", when=_fits)
def grid_sample_cpu(input: HostArray, grid: HostArray, *options: Any, dtype: DType) -> Any:
    index, weight, _ = _taps(input, grid, *options)
    out = empty((*input.shape[:2], *grid.shape[1:-1]), dtype)
    _forward(out.reshape(out.shape[0] * out.shape[1], -1), _planes(input), index, weight, input.shape[1])
    return out, Saved(input=input, grid=grid)


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, **options: Any) -> bool:
    return supported(dy) and _fits(saved.input, saved.grid)


@grid_sample.on_backward("cpu", when=_backward_fits)
def grid_sample_backward_cpu(dy: HostArray, saved: Saved, needs: Any, **options: Any) -> Any:
    x, grid, dx, dgrid = saved.input, saved.grid, None, None
    index, weight, factors = _taps(x, grid, *options.values())
    grad = _planes(dy)
    if needs[0]:
        dx = empty(x.shape, needs[0])
        _input_gradient(dx.reshape(x.shape[0] * x.shape[1], -1), grad, index, weight, x.shape[1])
    if needs[1] and options["mode"] == "nearest":
        dgrid = np.zeros(grid.shape, needs[1])
    elif needs[1]:
        dweight = empty(weight.shape, float32)
        _weight_gradient(dweight, grad, _planes(x), index, x.shape[1])
        sides = [0] * grid.shape[-1]
        for each, (weights, derivatives) in zip(dweight, factors, strict=True):
            for i, derivative in enumerate(derivatives):
                sides[i] = sides[i] + each * prod([derivative, *weights[:i], *weights[i + 1 :]])
        dgrid = in_format(np.stack(sides[::-1], -1).reshape(grid.shape), needs[1])
    return dx, dgrid
