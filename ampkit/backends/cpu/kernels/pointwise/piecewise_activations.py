"""CPU kernels of the piecewise linear activations: ReLU and leaky ReLU by oneDNN, the others block by block.

oneDNN's hardsigmoid and the gradient of its hardswish return 1 for NaN, and its hardswish loses digits near -3.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.blockwise import BLOCK, in_blocks, pieces, plain, store, widened
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn import binary, eltwise
from ampkit.backends.cpu.onednn.primitive import MIN_ELEMENTS, HostArray
from ampkit.base.dtypes import DType, accumulator
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise import piecewise_activations


def _leaks(array: HostArray, negative_slope: Any) -> bool:
    # Where it does not leak, oneDNN turns NaN into 0.
    return negative_slope != 0 and eltwise.fits(array)


@piecewise_activations.leaky_relu.on("cpu", when=_leaks, min_elements=MIN_ELEMENTS)
def leaky_relu_cpu(input: HostArray, negative_slope: float, *, dtype: DType) -> Any:
    return eltwise.forward("relu", negative_slope, input), Saved(input=input)


def _leaky_back_fits(dy: HostArray, saved: Saved, needs: Any, negative_slope: float) -> bool:
    return needs[0] == dy.dtype and _leaks(dy, negative_slope) and eltwise.fits(dy, saved.input)


@piecewise_activations.leaky_relu.on_backward("cpu", when=_leaky_back_fits, min_elements=MIN_ELEMENTS)
def leaky_relu_backward_cpu(dy: HostArray, saved: Saved, needs: Any, negative_slope: float) -> HostArray:
    return eltwise.backward("relu", negative_slope, dy, saved.input)


@piecewise_activations.relu.on("cpu", when=lambda input: eltwise.fits(input), min_elements=MIN_ELEMENTS)
def relu_cpu(input: HostArray, *, dtype: DType) -> Any:
    out = binary.positive(input)
    return out, Saved(out=out)


def _relu_back_fits(dy: HostArray, saved: Saved, needs: Any) -> bool:
    return needs[0] == dy.dtype and binary.fits(dy, saved.out)


@piecewise_activations.relu.on_backward("cpu", when=_relu_back_fits, min_elements=MIN_ELEMENTS)
def relu_backward_cpu(dy: HostArray, saved: Saved, needs: Any) -> Any:
    dx = binary.where_nonzero(dy, saved.out)
    return NotImplemented if dx is None else dx


for _op in (
    piecewise_activations.hardtanh,
    piecewise_activations.leaky_relu,
    piecewise_activations.hardshrink,
    piecewise_activations.hardsigmoid,
    piecewise_activations.hardswish,
    piecewise_activations.softshrink,
):
    in_blocks(_op)


# prelu


def _prelu_fits(input: HostArray, weight: HostArray) -> bool:
    shared = weight.size == 1 or input.ndim > 2
    return input.size >= 2 * BLOCK and shared and plain(input)


def _laid(array: HostArray, weights: int) -> HostArray:
    # As [rows, columns], each row of one channel.
    return array.reshape(1, -1) if weights == 1 else array.reshape(prod(array.shape[:2]), -1)


def _each(weight: HostArray, rows: int, wide: DType) -> HostArray:
    flat = in_format(weight.reshape(-1), wide)
    return np.tile(flat, rows // flat.size)[:, None]


@piecewise_activations.prelu.on("cpu", when=_prelu_fits, min_elements=2 * BLOCK)
def prelu_cpu(input: HostArray, weight: HostArray, *, dtype: DType) -> Any:
    out, wide, whole = np.empty(input.shape, dtype), accumulator(dtype), _laid(input, weight.size)
    made, share = _laid(out, weight.size), _each(weight, len(whole), wide)
    for rows, columns in pieces(*whole.shape):
        x = widened(whole[rows, columns], wide)
        store(np.where(x > 0, x, share[rows] * x), made[rows, columns])
    return out, Saved(input=input, weight=weight, shape=weight.shape)


def _prelu_back_fits(dy: HostArray, saved: Saved, needs: Any) -> bool:
    shared = prod(saved.shape) == 1 or dy.ndim > 2
    return dy.size >= 2 * BLOCK and shared and plain(dy) and plain(saved.input)


@piecewise_activations.prelu.on_backward("cpu", when=_prelu_back_fits, min_elements=2 * BLOCK)
def prelu_backward_cpu(dy: HostArray, saved: Saved, needs: Any) -> Any:
    weights, wide = prod(saved.shape), accumulator(dy.dtype)
    grad, whole = _laid(dy, weights), _laid(saved.input, weights)
    out = np.empty(dy.shape, needs[0]) if needs[0] else None
    share = _each(saved.weight, len(whole), wide) if needs[0] else None
    sums = np.zeros(len(whole))
    for rows, columns in pieces(*whole.shape):
        x, s = widened(whole[rows, columns], wide), widened(grad[rows, columns], wide)
        below = x <= 0
        if out is not None and share is not None:
            store(np.where(below, s * share[rows], s), _laid(out, weights)[rows, columns])
        if needs[1]:
            sums[rows] += np.where(below, s * x, 0).sum(1)
    dw = sums.reshape(-1, weights).sum(0).reshape(saved.shape) if needs[1] else None
    return out, None if dw is None else dw.astype(needs[1])
