"""CPU kernels of products and convolutions of codes: one oneDNN primitive each, where its sums are exact.

A primitive is kept with the weight, its layout, scales and bias in it, for each shape of the input and thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.backends.cpu.channels_last import empty_channels_last, to_channels_last
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn.gemm import as_rows
from ampkit.backends.cpu.onednn.library import has_exact_int8
from ampkit.backends.cpu.onednn.primitive import HostArray, empty
from ampkit.backends.cpu.onednn.quantized import Prepared, Requantize, prepare_convolution, prepare_matmul
from ampkit.base.dtypes import DType, float32, int8, uint8
from ampkit.base.errors import UnsupportedError
from ampkit.base.version_counter import derived_value
from ampkit.ops.nn.conv import geometry_of
from ampkit.ops.quantized.codes import QParams
from ampkit.ops.quantized.products import conv2d_int8, linear_int8

_MAX_PREPARED = 64  # primitives of a weight; beyond that they are dropped


def _fits(input: HostArray, weight: HostArray, *rest: Any) -> bool:
    return has_exact_int8() and input.dtype in (uint8, int8) and weight.dtype == int8 and weight.size > 0


def _requantize(
    scale: HostArray, bias: HostArray | None, given: QParams, activation: str, result: QParams | None,
    residual: QParams | None,
) -> Requantize:  # fmt: skip
    factor = np.ascontiguousarray(scale.astype(float32) * np.float32(given.scale))
    row = None if bias is None else np.ascontiguousarray(bias.astype(float32))
    out = (float32, None, 0) if result is None else (result.dtype, result.scale, result.zero_point)
    added = () if residual is None else (residual.scale, residual.zero_point)
    return Requantize(given.zero_point, factor, row, activation, *out, *added)


def _ready(versions: Any, weight: HostArray, key: Any, make: Callable[[], Prepared | None]) -> Prepared:
    """The primitive that `make` prepares, kept with `weight` until that, its scale or its bias changes."""
    kept = derived_value(versions[1], weight, "int8", dict)
    if kept is None:
        return _need(make())
    key = (threading.get_ident(), *[version[0] for version in versions[1:4]], *key)
    if key not in kept:
        if len(kept) >= _MAX_PREPARED:
            kept.clear()
        kept[key] = make()
    return _need(kept[key])


def _need(prepared: Prepared | None) -> Prepared:
    if prepared is None:
        raise UnsupportedError
    return prepared


def _fits_sum(residual: Any, result: QParams | None, qparams: QParams | None) -> bool:
    # oneDNN adds the result's former contents: codes to codes of one dtype.
    return residual is None or (result is not None and qparams is not None and result.signed == qparams.signed)


@linear_int8.on("cpu", when=_fits, wants_cache=True)
def linear_int8_cpu(
    input: HostArray, weight: HostArray, weight_scale: HostArray, bias: HostArray | None, residual: HostArray | None,
    input_qparams: QParams, activation: str, output_qparams: QParams | None, residual_qparams: QParams | None,
    *, dtype: DType, versions: Any,
) -> HostArray:  # fmt: skip
    if residual is not None:
        raise UnsupportedError
    rows = np.ascontiguousarray(as_rows(input))

    def make() -> Prepared | None:
        how = _requantize(weight_scale, bias, input_qparams, activation, output_qparams, None)
        return prepare_matmul(rows.shape, rows.dtype, weight, how)

    key = rows.shape, rows.dtype, input_qparams, activation, output_qparams
    out = empty((len(rows), len(weight)), float32 if output_qparams is None else output_qparams.dtype)
    made = _ready(versions, weight, key, make)(rows, out).reshape(*input.shape[:-1], len(weight))
    return made if output_qparams is not None else in_format(made, dtype)


@conv2d_int8.on("cpu", when=_fits, wants_cache=True)
def conv2d_int8_cpu(
    input: HostArray, weight: HostArray, weight_scale: HostArray, bias: HostArray | None, residual: HostArray | None,
    stride: Any, padding: Any, dilation: Any, groups: int, input_qparams: QParams, activation: str,
    output_qparams: QParams | None, residual_qparams: QParams | None, *, dtype: DType, versions: Any,
) -> HostArray:  # fmt: skip
    if not _fits_sum(residual, output_qparams, residual_qparams):
        raise UnsupportedError
    geometry = geometry_of("conv2d_int8", input, weight, stride, padding, dilation)

    def make() -> Prepared | None:
        added = None if residual is None else residual_qparams
        how = _requantize(weight_scale, bias, input_qparams, activation, output_qparams, added)
        return prepare_convolution(input.shape, input.dtype, weight, geometry, groups, how)

    key = input.shape, input.dtype, geometry, input_qparams, activation, output_qparams, residual_qparams
    ready = _ready(versions, weight, key, make)
    shape = input.shape[0], len(weight), *geometry.output_size
    out = empty_channels_last(shape, float32 if output_qparams is None else output_qparams.dtype)
    if residual is not None:
        np.copyto(out, residual)
    made = ready(to_channels_last(input, input.dtype), out)
    return made if output_qparams is not None else in_format(made, dtype)
