"""Kernels of the piecewise and shrinking activations: in blocks, and so are PReLU and GLU.

Of oneDNN's, hardsigmoid and the slope of hardswish make 1 of NaN, and hardswish loses digits near -3.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.blockwise import BLOCK, in_blocks, pieces, plain, store, widened
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.dtypes import DType, accumulator
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise import piecewise_activations

for _op in (
    piecewise_activations.celu,
    piecewise_activations.hardshrink,
    piecewise_activations.hardsigmoid,
    piecewise_activations.hardswish,
    piecewise_activations.selu,
    piecewise_activations.softshrink,
    piecewise_activations.softsign,
    piecewise_activations.tanhshrink,
):
    in_blocks(_op)


# glu


def _parted(array: HostArray, dim: int, parts: int) -> HostArray:
    # As [before, parts, behind], of which `parts` are along `dim`.
    return array.reshape(prod(array.shape[: dim % array.ndim]), parts, -1)


def _glu_fits(input: HostArray, dim: int) -> bool:
    return input.size >= 4 * BLOCK and plain(input)


@piecewise_activations.glu.on("cpu", when=_glu_fits, min_elements=4 * BLOCK)
def glu_cpu(input: HostArray, dim: int, *, dtype: DType) -> Any:
    shape = list(input.shape)
    shape[dim] //= 2
    out, wide, whole = np.empty(shape, dtype), accumulator(dtype), _parted(input, dim, 2)
    made = _parted(out, dim, 1)
    for rows, columns in pieces(len(whole), whole.shape[2]):
        found, _ = piecewise_activations.glu.forward.reference.run(widened(whole[rows, :, columns], wide), 1)
        store(found, made[rows, :, columns])
    return out, Saved(input=input)


def _glu_back_fits(dy: HostArray, saved: Saved, needs: Any, dim: int) -> bool:
    return dy.size >= 2 * BLOCK and plain(dy) and plain(saved.input)


@piecewise_activations.glu.on_backward("cpu", when=_glu_back_fits, min_elements=2 * BLOCK)
def glu_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: int) -> HostArray:
    reference, wide = piecewise_activations.glu.backward_primitive.reference.run, accumulator(needs[0])  # type: ignore[union-attr]
    out = np.empty(saved.input.shape, needs[0])
    whole, made, slope = _parted(saved.input, dim, 2), _parted(out, dim, 2), _parted(dy, dim, 1)
    for rows, columns in pieces(len(whole), whole.shape[2]):
        given = Saved(input=widened(whole[rows, :, columns], wide))
        store(reference(widened(slope[rows, :, columns], wide), given, needs, 1), made[rows, :, columns])
    return out


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
    slope, whole = _laid(dy, weights), _laid(saved.input, weights)
    out = np.empty(dy.shape, needs[0]) if needs[0] else None
    share = _each(saved.weight, len(whole), wide) if needs[0] else None
    sums = np.zeros(len(whole))
    for rows, columns in pieces(*whole.shape):
        x, s = widened(whole[rows, columns], wide), widened(slope[rows, columns], wide)
        below = x <= 0
        if out is not None and share is not None:
            store(np.where(below, s * share[rows], s), _laid(out, weights)[rows, columns])
        if needs[1]:
            sums[rows] += np.where(below, s * x, 0).sum(1)
    dw = sums.reshape(-1, weights).sum(0).reshape(saved.shape) if needs[1] else None
    return out, None if dw is None else dw.astype(needs[1])
