"""layer_norm of rows by oneDNN, forward and backward, with statistics in float32."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

from ampkit.base.dtypes import DType, float32

from ..device import in_format
from .eltwise import computed, computes, computing
from .primitive import (
    BACKWARD,
    DIFF_DST,
    DIFF_SCALE,
    DIFF_SHIFT,
    DIFF_SRC,
    DST,
    MEAN,
    MIN_ELEMENTS,
    SCALE,
    SHIFT,
    SRC,
    TRAINING,
    VARIANCE,
    Call,
    HostArray,
    Layout,
    attributes,
    cached,
    empty,
    primitive_desc,
)
from .reorder import FORMATS

LONGEST_ROW = 1 << 13  # elements of whose sums a lane adds up its share: beyond, errors grow past a few roundings
_ROWS = 1024  # whose gradients of weight and bias oneDNN adds up one after the other
GIVEN, SCALED, SHIFTED = 1, 2, 4  # flags: the statistics are given, there is a scale, a shift


def flags_of(weight: Any, bias: Any) -> int:
    """What there is besides rows, as oneDNN's flags."""
    return SCALED * (weight is not None) + SHIFTED * (bias is not None)


def forward(shape: tuple[int, int], dtype: DType, out: DType, flags: int, eps: float) -> Call:
    """The call for rows of `dtype`: (rows, answer, means, variances, scale, shift)."""
    of, to = Layout.dense(shape, dtype), Layout.dense(shape, out)
    each, scale = (Layout.dense((n,), float32) for n in shape)
    given = [TRAINING, of.handle, to.handle, each.handle, ctypes.c_float(eps), flags, attributes()]
    uses = [(SRC, of), (DST, to), (MEAN, each), (VARIANCE, each)]
    uses += [(SCALE, scale)] * bool(flags & SCALED) + [(SHIFT, scale)] * bool(flags & SHIFTED)
    return Call("layer_normalization_forward", given, uses)


def backward(shape: tuple[int, int], dtype: DType, grad: DType, out: DType, flags: int, eps: float) -> Call:
    """The call of its gradients: (dy, rows, means, variances, dx, scale, dscale, dshift)."""
    of, dy, to = (Layout.dense(shape, d) for d in (dtype, grad, out))
    each, scale = (Layout.dense((n,), float32) for n in shape)
    small = ctypes.c_float(eps)
    given = [TRAINING, of.handle, dy.handle, each.handle, small, flags, attributes()]
    hint = primitive_desc("layer_normalization_forward", *given)
    given = [BACKWARD, to.handle, dy.handle, of.handle, each.handle, small, flags, hint, attributes()]
    uses = [(DIFF_DST, dy), (SRC, of), (MEAN, each), (VARIANCE, each), (DIFF_SRC, to)]
    uses += [(SCALE, scale), (DIFF_SCALE, scale)] * bool(flags & SCALED)
    uses += [(DIFF_SHIFT, scale)] * bool(flags & SHIFTED)
    call = Call("layer_normalization_backward", given, uses)
    if call.inputs > 4 + bool(flags & SCALED):  # version 3.2 counts the shift among what it reads
        call = Call("layer_normalization_backward", given, [*uses, (SHIFT, scale)])
    return call


def rows_fit(input: HostArray, normalized_shape: Any, longest: int = LONGEST_ROW) -> bool:
    """Whether the kernel of layer_norm is for `input`: large, in one piece, and normalized along its last axis, of no
    more than `longest` elements.
    """
    axes = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
    known = input.dtype in FORMATS and computes(float32) and input.size >= MIN_ELEMENTS
    return known and axes == 1 and bool(input.flags.c_contiguous) and 1 < input.shape[-1] <= longest


def normalized(
    input: HostArray, weight: HostArray | None, bias: HostArray | None, eps: float, dtype: DType
) -> tuple[HostArray, HostArray, HostArray, HostArray] | None:
    """layer_norm of `input`, for which `rows_fit` holds, in `dtype`; of each row [R, 1] the mean, 1 / deviation and [R]
    the variance. None where oneDNN has no fast code for it.
    """
    shape, flags = (input.size // input.shape[-1], input.shape[-1]), flags_of(weight, bias)
    given, to = computed(input), computing(dtype)
    key = ("layer_norm", shape, given.dtype, to, flags, eps)
    call = cached(key, lambda: forward(shape, given.dtype, to, flags, eps))
    if call is None:
        return None
    out, mean, variance = empty(input.shape, to), empty(shape[:1], float32), empty(shape[:1], float32)
    scales = [in_format(np.ascontiguousarray(x), float32) for x in (weight, bias) if x is not None]
    call(given, out, mean, variance, *scales)
    rstd = (1 / np.sqrt(variance + np.float32(eps))).reshape(-1, 1)
    return in_format(out, dtype), mean.reshape(-1, 1), rstd, variance


def grads(
    dy: HostArray, input: HostArray, weight: HostArray | None, mean: HostArray, variance: HostArray, needs: Any,
    eps: float,
) -> tuple[HostArray, HostArray | None, HostArray | None] | None:  # fmt: skip
    """The gradients of input, weight and bias in the dtypes `needs`, None where that is, which input's is not."""
    x, flags = computed(input), flags_of(weight, needs[2])
    flat = x.size // x.shape[-1], x.shape[-1]
    dx = empty(x.shape, computing(needs[0]))
    sums = gradients_into(
        dx.reshape(flat), computed(dy).reshape(flat), x.reshape(flat), weight, mean, variance, flags, eps
    )
    if sums is None:
        return None
    dw, db = (in_format(d, need) if need else None for d, need in zip(sums, needs[1:], strict=True))
    return in_format(dx, needs[0]), dw, db


def gradients_into(
    dx: HostArray, dy: HostArray, x: HostArray, weight: HostArray | None, mean: HostArray, variance: HostArray,
    flags: int, eps: float,
) -> HostArray | None:  # fmt: skip
    """Write the gradient of rows x [R, C] to dx. Those of weight and bias [2, C], float32, zeros for one that is not
    there; None where oneDNN has no fast code.
    """
    step = _ROWS if flags & (SCALED | SHIFTED) else len(x)
    sums = np.zeros((-(-len(x) // step), 2, x.shape[1]), np.float32)
    scale = [] if weight is None else [in_format(np.ascontiguousarray(weight), float32)]
    for part, start in zip(sums, range(0, len(x), step), strict=True):
        at = slice(start, start + step)
        given = x[at].shape, x.dtype, dy.dtype, dx.dtype, flags, eps
        call = cached(("layer_norm_backward", *given), partial(backward, *given))
        if call is None:
            return None
        more = [*scale, *[part[0]] * len(scale), *[part[1]] * bool(flags & SHIFTED)]
        more += [part[1]] if len(more) + 5 < len(call.layouts) else []
        call(dy[at], x[at], mean[at], variance[at], dx[at], *more)
    return np.add.reduce(sums, 0, np.float64).astype(np.float32)
