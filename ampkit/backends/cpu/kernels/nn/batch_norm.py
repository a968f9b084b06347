"""Kernels of batch norm: oneDNN's, over channels-last images, and over rows of features.

oneDNN adds each thread's share up in one float32 sum, and a mean over 32 images of 32 x 32 comes out a hundred times
less precise than it can be. So it makes the statistics of pieces, which are put together in float64; of bfloat16 by
sums and sums of squares, in one read. Its ReLU makes 0 of NaN; but what is not finite spreads to the statistics of its
channel: where those are finite, there is no NaN. Of given statistics that is not so, and ReLU is a pass of its own.
Their gradients are the reference's. A 16-bit format that oneDNN does not compute in is widened, and the result is
rounded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from math import gcd, isfinite
from typing import Any

import numpy as np

from ampkit.backends.cpu.channels_last import channels_last_layout, nchw, nhwc, onednn_geometry
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn import binary
from ampkit.backends.cpu.onednn.eltwise import computed, computes
from ampkit.backends.cpu.onednn.primitive import (
    ALGORITHM,
    BACKWARD,
    DIFF_BIAS,
    DIFF_DST,
    DIFF_SCALE,
    DIFF_SHIFT,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DST,
    MEAN,
    MIN_ELEMENTS,
    SCALE,
    SHIFT,
    SRC,
    TRAINING,
    VARIANCE,
    WORKSPACE,
    Call,
    HostArray,
    Layout,
    attributes,
    cached,
    empty,
    primitive_desc,
)
from ampkit.backends.cpu.onednn.reorder import FORMATS
from ampkit.base.dtypes import DType, bfloat16, float32, uint8
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.batch_norm import batch_norm_, update_running_statistics
from ampkit.ops.nn.conv_geometry import ConvGeometry

_GIVEN, _SCALED, _SHIFTED, _RELU = 1, 2, 4, 8  # flags: statistics are given, there is a scale, a shift; ReLU follows
_COLUMNS = 1024
_LANES = 16  # elements of a vector of float32
_PIECE = 1 << 19  # elements of which oneDNN makes statistics at once: what it writes meanwhile stays in the caches
_READ = 1 << 18  # elements where it writes nothing, one sum of which is good to some 3e-7
_IMAGES = 32  # which threads share
_TALLEST = 1 << 17  # rows whose gradients oneDNN's backward adds up one by one: past 100 roundings, beyond
_CANCELS = 16  # mean^2 / variance: sums of squares, good to some 3e-7, leave 5e-6 of a variance at most


def statistics(pixels: HostArray, eps: float) -> tuple[HostArray, HostArray] | None:
    """Mean and biased variance of each column of [rows, C], float32; None where oneDNN has no fast code for it."""
    return (_by_squares(pixels) if pixels.dtype == bfloat16 else None) or _by_deviations(pixels, eps)


def _pieces(pixels: HostArray, most: int) -> Iterator[HostArray]:
    # Several rows side by side are one of more columns: shorter sums, and more work for each vector.
    rows, channels = pixels.shape
    several = max(1, min(_COLUMNS // channels, rows // 2))
    several = several - several % (_LANES // gcd(_LANES, channels)) or several  # in whole vectors, if it can be
    whole = rows - rows % several
    long = pixels[:whole].reshape(-1, several * channels)
    step = max(1, most // long.shape[1])
    for start in range(0, len(long), step):
        yield long[start : start + step]
    if whole < rows:
        yield pixels[whole:]


def _by_deviations(pixels: HostArray, eps: float) -> tuple[HostArray, HostArray] | None:
    # Those of pieces, put together in float64 (Chan, Golub, LeVeque 1983, The American Statistician 37, eq. 2.1).
    rows, channels = pixels.shape
    counts, means, variances = [], [], []
    for piece in _pieces(pixels, _PIECE):
        call = _prepared(piece.shape[0], piece.shape[1], pixels.dtype, 0, eps)
        if call is None:
            return None
        mean, variance = (empty(piece.shape[1:], float32) for _ in range(2))
        call(piece, empty(piece.shape, pixels.dtype), mean, variance)
        means.append(mean.reshape(-1, channels))
        variances.append(variance.reshape(-1, channels))
        counts.append(np.full((len(means[-1]), 1), len(piece) / rows))
    share, each, spread = np.concatenate(counts), np.concatenate(means), np.concatenate(variances)
    total = (each * share).sum(0)
    return total.astype(np.float32), ((spread + (each - total) ** 2) * share).sum(0).astype(np.float32)


def _by_squares(pixels: HostArray) -> tuple[HostArray, HostArray] | None:
    # Squares of bfloat16 are exact in float32; sums of them cancel where the mean is large beside the deviation, and
    # then this does not serve.
    rows, channels = pixels.shape
    total: Any = 0
    for piece in _pieces(pixels, _READ):
        found = _sums(piece)
        if found is None:
            return None
        total = total + np.add.reduce(found.reshape(2, -1, channels), 1, np.float64)
    square, mean = total / rows
    variance = square - mean * mean
    if np.count_nonzero(variance * (_CANCELS + 1) < square):
        return None
    return mean.astype(np.float32), variance.astype(np.float32)


def _sums(rows: HostArray) -> HostArray | None:
    # Sums of squares and sums of each column, in one read: the gradients of a kernel of one pixel for each channel and
    # of its bias, where images [N, C, 1, W] are also the grad of their maps.
    batch, c = gcd(len(rows), _IMAGES), rows.shape[1]
    images = batch, c, 1, len(rows) // batch
    call = cached(("sums", images), lambda: _gradients(images))
    if call is None:
        return None
    out = empty((2, call.layouts[2].nbytes // float32.itemsize), float32)  # oneDNN fills its last block of kernels up
    call(rows, rows, *out)
    return out[:, :c]


def _gradients(images: tuple[int, ...]) -> Call:
    of, c, pixel = channels_last_layout(images, bfloat16), images[1], (1, 1)
    window = onednn_geometry(ConvGeometry(pixel, pixel, pixel, ((0, 0), (0, 0)), images[2:]))
    hint, bias = (Layout((c, 1, 1, 1, 1), bfloat16, None), Layout.dense((c,), bfloat16)), Layout.dense((c,), float32)
    given = [TRAINING, ALGORITHM["direct"], of.handle, *[h.handle for h in hint], of.handle, *window, attributes()]
    forward, kernels = primitive_desc("convolution_forward", *given), Layout((c, 1, 1, 1, 1), float32, None)
    given = [ALGORITHM["direct"], of.handle, kernels.handle, bias.handle, of.handle, *window, forward, attributes()]
    uses = [(SRC, of), (DIFF_DST, of), (DIFF_WEIGHTS, None), (DIFF_BIAS, bias)]
    return Call("convolution_backward_weights", given, uses)


def _prepared(rows: int, channels: int, dtype: DType, flags: int, eps: float) -> Call | None:
    key = ("batch_norm", rows, channels, dtype, flags, eps)
    call: Call | None = cached(key, lambda: _forward(rows, channels, dtype, flags, eps))
    return call


def _forward(rows: int, channels: int, dtype: DType, flags: int, eps: float) -> Call:
    of, each = Layout.dense((rows, channels), dtype), Layout.dense((channels,), float32)  # [rows of pixels, C]
    given = [TRAINING, of.handle, of.handle, ctypes.c_float(eps), flags, attributes()]
    uses: list[tuple[int, Layout | None]] = [(SRC, of), (DST, of), (MEAN, each), (VARIANCE, each)]
    uses += [(SCALE, each)] * bool(flags & _SCALED) + [(SHIFT, each)] * bool(flags & _SHIFTED)
    uses += [(WORKSPACE, None)] * bool(flags & _RELU)
    return Call("batch_normalization_forward", given, uses)


def _backward(rows: int, channels: int, dtype: DType, flags: int, eps: float) -> Call:
    of, each, small = Layout.dense((rows, channels), dtype), Layout.dense((channels,), float32), ctypes.c_float(eps)
    given = [TRAINING, of.handle, of.handle, small, flags, attributes()]
    hint = primitive_desc("batch_normalization_forward", *given)
    given = [BACKWARD, of.handle, of.handle, of.handle, small, flags, hint, attributes()]
    uses: list[tuple[int, Layout | None]] = [(DIFF_DST, of), (SRC, of), (MEAN, each), (VARIANCE, each), (SCALE, each)]
    uses += [(DIFF_SRC, of), (DIFF_SCALE, each), (DIFF_SHIFT, each)] + [(WORKSPACE, None)] * bool(flags & _RELU)
    return Call("batch_normalization_backward", given, uses)


def _fits(input: HostArray) -> bool:
    known = input.dtype in FORMATS and computes(float32) and input.size >= MIN_ELEMENTS
    return known and bool(nhwc(input).flags.c_contiguous)


@batch_norm_.on("cpu", when=lambda input, *more: _fits(input))
def batch_norm_cpu(
    input: HostArray, weight: HostArray | None, bias: HostArray | None, running_mean: HostArray | None,
    running_var: HostArray | None, eps: float, relu: bool, *, dtype: DType,
) -> Any:  # fmt: skip
    if dtype != input.dtype:
        return NotImplemented
    pixels, given = computed(nhwc(input).reshape(-1, input.shape[1])), None
    if running_mean is not None and running_var is not None:
        given = _wide(running_mean), _wide(running_var)
    found = given or statistics(pixels, eps)
    scales = [_wide(each) for each in (weight, bias) if each is not None]
    if found is None or (relu and not given and not all(_finite(each) for each in (*found, *scales))):
        return NotImplemented
    pixels = _in_vectors(pixels, input.shape[1])
    flags = _GIVEN + _SCALED * (weight is not None) + _SHIFTED * (bias is not None) + _RELU * (relu and not given)
    call = _prepared(pixels.shape[0], pixels.shape[1], pixels.dtype, flags, eps)
    if call is None:
        return NotImplemented
    out, (mean, variance) = empty(nhwc(input).shape, pixels.dtype), found
    mask = [empty((call.layouts[-1].nbytes,), uint8)] if flags & _RELU else []  # ReLU's, a bit each
    call(pixels, out, mean, variance, *scales, *mask)
    y = in_format(nchw(binary.positive(out) if relu and given else out), dtype)
    rstd = (1 / np.sqrt(variance + np.float32(eps))).reshape(-1, 1)
    saved = Saved(input=input, weight=weight, running_mean=running_mean, running_var=running_var, mean=mean, rstd=rstd)
    if relu:
        saved.bias, saved.positive = bias, mask
    if given:
        return y, saved
    saved.variance = variance
    return y, mean, variance, saved


def _finite(each: HostArray) -> bool:
    return isfinite(np.add.reduce(each, dtype=np.float64))  # which no sum of float32 leaves


def _in_vectors(array: HostArray, channels: int) -> HostArray:
    # In 16 bits oneDNN is quick with whole vectors of channels alone, and up to ten times as slow with others.
    return in_format(array, float32) if channels % _LANES else array


def _wide(each: HostArray) -> HostArray:
    return in_format(np.ascontiguousarray(each), float32)


@batch_norm_cpu.backward
def batch_norm_cpu_backward(dy: Any, saved: Saved, needs: Any, eps: float, relu: bool) -> Any:
    if saved.running_mean is not None or saved.input.size > _TALLEST * saved.input.shape[1]:
        return NotImplemented
    grad, dmean, dvariance = dy
    x, weight = saved.input, saved.weight
    if needs[0] != x.dtype or grad.dtype != x.dtype or np.count_nonzero(dmean) or np.count_nonzero(dvariance):
        return NotImplemented
    if not nhwc(grad).flags.c_contiguous:
        grad = nchw(np.ascontiguousarray(nhwc(grad)))
    channels = x.shape[1]
    x, grad = _in_vectors(computed(x), channels), _in_vectors(computed(grad), channels)
    rows, flags = x.size // channels, _SCALED | _SHIFTED | _RELU * relu
    key = ("batch_norm_backward", rows, channels, x.dtype, flags, eps)
    call = cached(key, lambda: _backward(rows, channels, x.dtype, flags, eps))
    if call is None:
        return NotImplemented
    dx, dw, db = empty(nhwc(x).shape, x.dtype), empty((channels,), float32), empty((channels,), float32)
    scale = np.ones(channels, np.float32) if weight is None else _wide(weight)
    call(grad, x, saved.mean, saved.variance, scale, dx, dw, db, *(saved.positive if relu else []))
    each = [in_format(d, need) if need else None for d, need in zip((dw, db), needs[1:3], strict=True)]
    return in_format(nchw(dx), needs[0]), *each, None, None


@update_running_statistics.on("cpu", when=lambda *arrays: {a.dtype for a in arrays[:4]} == {float32})
def update_running_statistics_cpu(
    running_mean: HostArray, running_var: HostArray, mean: HostArray, var: HostArray, count: int, momentum: float
) -> None:
    """The reference's bits; what is not finite is seen at once, for nobody waits for this CPU."""
    if _finite(mean) and _finite(var):
        for running, batch in ((running_mean, mean), (running_var, var * (count / (count - 1)))):
            running *= 1 - momentum
            running += momentum * batch
