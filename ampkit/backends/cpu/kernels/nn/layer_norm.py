"""CPU kernels of layer_norm, rms_norm and group_norm: oneDNN's layer norm, over rows, with statistics in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn.binary import calling
from ampkit.backends.cpu.onednn.eltwise import computed, computes, computing
from ampkit.backends.cpu.onednn.gemm import as_rows
from ampkit.backends.cpu.onednn.layer_norm import (
    GIVEN,
    LONGEST_ROW,
    backward,
    flags_of,
    forward,
    gradients_into,
    grads,
    normalized,
    rows_fit,
)
from ampkit.backends.cpu.onednn.primitive import MAX_SUMMED_ROW, Call, HostArray, Layout, cached, empty
from ampkit.backends.cpu.onednn.reorder import FORMATS
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.core.blocked_sum import blocked_sum
from ampkit.ops.nn.layer_norm import group_norm, layer_norm, rms_norm
from ampkit.ops.reduction.dot_products import dot_channels, dot_last, flatten_spatial, sum_channels

_LARGE = 1 << 17  # elements, for rms_norm; NumPy is as fast for fewer
_BLOCK = 1 << 18  # elements that are read several times in a row


@layer_norm.on("cpu", when=lambda input, shape, *more: rows_fit(input, shape))
def layer_norm_cpu(
    input: HostArray, normalized_shape: Any, weight: HostArray | None, bias: HostArray | None, eps: float,
    *, dtype: DType,
) -> Any:  # fmt: skip
    found = normalized(input, weight, bias, eps, dtype)
    if found is None:
        return NotImplemented
    out, mean, rstd, variance = found
    return out, Saved(input=input, weight=weight, mean=mean, rstd=rstd, variance=variance)


@layer_norm_cpu.backward
def layer_norm_cpu_backward(dy: HostArray, saved: Saved, needs: Any, normalized_shape: Any, eps: float) -> Any:
    if not needs[0] or not rows_fit(dy, normalized_shape):
        return NotImplemented
    found = grads(dy, saved.input, saved.weight, saved.mean, saved.variance, needs, eps)
    return NotImplemented if found is None else found


# rms_norm: layer_norm with a mean of 0, given


def _row_blocks(rows: HostArray) -> Iterator[slice]:
    step = max(1, _BLOCK // rows.shape[1])
    return (slice(start, start + step) for start in range(0, len(rows), step))


@rms_norm.on("cpu", when=lambda input, shape, *more: input.size >= _LARGE and rows_fit(input, shape, input.size))
def rms_norm_cpu(
    input: HostArray, normalized_shape: Any, weight: HostArray | None, eps: float | None, *, dtype: DType
) -> Any:
    rows, to, flags = as_rows(computed(input)), computing(dtype), GIVEN | flags_of(weight, None)
    eps = float(np.finfo(np.float32).eps) if eps is None else eps
    key = ("rms_norm", rows.shape, rows.dtype, to, flags, eps)
    call = cached(key, lambda: forward(rows.shape, rows.dtype, to, flags, eps))
    if call is None:
        return NotImplemented
    out, squares = empty(input.shape, to), empty((len(rows),), float32)
    for at in _row_blocks(rows):
        wide = in_format(rows[at], float32)
        squares[at] = dot_last(wide, wide)[:, 0]
    squares /= rows.shape[1]
    scales = [] if weight is None else [in_format(np.ascontiguousarray(weight), float32)]
    call(rows, out, np.zeros_like(squares), squares, *scales)
    return in_format(out, dtype), Saved(
        input=input, weight=weight, rstd=(1 / np.sqrt(squares + np.float32(eps))).reshape(-1, 1)
    )


def _rms_back_fits(dy: HostArray, saved: Saved, needs: Any, normalized_shape: Any, eps: Any) -> bool:
    if not needs[0] or dy.size < _LARGE or saved.rstd.dtype != float32:
        return False
    return all(rows_fit(array, normalized_shape, array.size) for array in (dy, saved.input))


@rms_norm.on_backward("cpu", when=_rms_back_fits)
def rms_norm_backward_cpu(dy: HostArray, saved: Saved, needs: Any, normalized_shape: Any, eps: Any) -> Any:
    # The grad of x * rstd by oneDNN, which takes rstd for a constant; what x has to do with rstd is added to it.
    x, dy, rstd, flags = as_rows(computed(saved.input)), computed(dy), saved.rstd, GIVEN | flags_of(saved.weight, None)
    width, push = x.shape[1], empty(x.shape, float32)
    given = np.zeros(len(x), np.float32), rstd.reshape(-1) ** -2
    sums = gradients_into(push, as_rows(dy), x, saved.weight, *given, flags, 0.0)
    if sums is None:
        return NotImplemented
    dx = push if needs[0] == float32 else empty(x.shape, needs[0])
    scratch = empty((max(1, _BLOCK // width), width), float32)
    for at in _row_blocks(x):
        wide, part = in_format(x[at], float32), push[at]
        along = dot_last(part, wide)
        part -= np.multiply(wide, along * rstd[at] ** 2 / width, out=scratch[: len(part)])
        if dx is not push:
            dx[at] = in_format(part, needs[0])
    return dx.reshape(dy.shape), in_format(sums[0], needs[1]) if needs[1] else None


# group_norm: layer_norm of groups of channels, without scales, which belong to each channel


def _groups_fit(array: HostArray) -> bool:
    known = array.dtype in FORMATS and array.size >= _LARGE and array[0].size > 1
    return known and computes(float32) and bool(array.flags.c_contiguous)


def _by_channel(kind: str, array: HostArray, scale: HostArray) -> HostArray:
    """`array` [N, C, S] "mul" or "add" `scale` [C], in place, float32."""
    c = array.shape[1]

    def build() -> Call:
        return calling(kind, Layout.dense(array.shape, float32), Layout.dense((1, c, 1), float32))

    call = cached(("by_channel", kind, array.shape), build)
    if call is None:
        {"mul": np.multiply, "add": np.add}[kind](array, scale.reshape(-1, 1), out=array)
    else:
        call(array, np.ascontiguousarray(scale), array)
    return array


def _standardized(input: HostArray, groups: int, eps: float) -> tuple[HostArray, HostArray, HostArray] | None:
    """Each group of `input` [N, C, ...] with mean 0 and variance 1, float32; the means, and the variances."""
    rows = len(input) * groups
    shape, wide = (rows, input.size // rows), in_format(input, float32)
    long = shape[1] > LONGEST_ROW
    call = cached(("group_norm", shape, eps), lambda: forward(shape, float32, float32, GIVEN * long, eps))
    if call is None:
        return None
    out = empty(input.shape, float32)
    mean, variance = _statistics(wide.reshape(shape)) if long else (empty((rows,), float32) for _ in range(2))
    call(wide, out, mean, variance)
    return out, mean, variance


def _statistics(rows: HostArray) -> tuple[HostArray, HostArray]:
    """The mean and the variance of each row, of any length, in two passes."""
    mean, variance = empty((len(rows), 1), float32), empty((len(rows), 1), float32)
    for at in _row_blocks(rows):
        np.divide(blocked_sum(rows[at], 1, True), rows.shape[1], out=mean[at])
        centred = rows[at] - mean[at]
        np.divide(dot_last(centred, centred), rows.shape[1], out=variance[at])
    return mean.reshape(-1), variance.reshape(-1)


@group_norm.on("cpu", when=lambda input, *more: _groups_fit(input), min_elements=_LARGE)
def group_norm_cpu(
    input: HostArray, num_groups: int, weight: HostArray | None, bias: HostArray | None, eps: float, *, dtype: DType
) -> Any:
    found = _standardized(input, num_groups, eps)
    if found is None:
        return NotImplemented
    out, mean, variance = found
    for kind, scale in (("mul", weight), ("add", bias)):
        if scale is not None:
            _by_channel(kind, flatten_spatial(out), in_format(scale, float32))
    rstd = (1 / np.sqrt(variance + np.float32(eps))).reshape(-1, 1)
    return in_format(out, dtype), Saved(input=input, weight=weight, mean=mean.reshape(-1, 1), rstd=rstd)


def _group_back_fits(dy: HostArray, saved: Saved, needs: Any, num_groups: int, eps: float) -> bool:
    known = bool(needs[0]) and saved.rstd.dtype == float32 and dy.size <= MAX_SUMMED_ROW * len(saved.rstd)
    return known and _groups_fit(dy) and _groups_fit(saved.input)


@group_norm.on_backward("cpu", when=_group_back_fits, min_elements=_LARGE)
def group_norm_backward_cpu(dy: HostArray, saved: Saved, needs: Any, num_groups: int, eps: float) -> Any:
    shape = len(saved.rstd), dy.size // len(saved.rstd)
    call = cached(("group_norm_backward", shape), lambda: backward(shape, float32, float32, float32, 0, 0.0))
    hat = _standardized(saved.input, num_groups, eps) if needs[1] else None
    if call is None or (needs[1] and hat is None):
        return NotImplemented
    dx, grad = empty(dy.shape, float32), flatten_spatial(in_format(dy, float32))
    dw = None if hat is None else in_format(dot_channels(grad, flatten_spatial(hat[0])).reshape(-1), needs[1])
    db = in_format(sum_channels(grad).reshape(-1), needs[2]) if needs[2] else None
    push = grad if saved.weight is None else _by_channel("mul", grad.copy(), in_format(saved.weight, float32))
    call(push, in_format(saved.input, float32), saved.mean, saved.rstd.reshape(-1) ** -2, dx)
    return in_format(dx, needs[0]), dw, db
