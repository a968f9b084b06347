"""Products and convolutions of 8-bit codes.

Sums of products of codes are exact: the largest, of 2^17 products of 255 and 127, is less than 2^32 and so exact in the
reference's float64, and in int32 up to 2^16. A sum then becomes a number, or a code again, in float32:

    y = activation(float32(sum) * (input scale * weight_scale[o]) + bias[o] + residual)
    code = saturate(round(y / scale + zero_point)), to the nearest, ties to even

Jacob et al. 2017, arXiv:1712.05877, eq. 4, with the scale as a float32 factor; a scale for each output channel as in
Krishnamoorthi 2018, arXiv:1806.08342, section 3.1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import float32
from ampkit.base.errors import ShapeError, check_choice
from ampkit.core.op import Array, Index, op
from ampkit.core.policy import Cast

from ..linalg.matmul import as_matrix
from ..nn.conv import geometry_of
from ..nn.conv_products import convolve
from ..pointwise.smooth_activations import gelu
from .codes import ONE, QParams, dequantize_per_tensor, to_codes

ACTIVATIONS = ("", "relu", "gelu", "gelu_tanh")


@op(cast=Cast.FP32, integers="float")
def linear_int8(
    input: Index, weight: Index, weight_scale: Array, bias: Array | None = None, residual: Index | None = None,
    input_qparams: Any = ONE, activation="", output_qparams: Any = None, residual_qparams: Any = None,
):  # fmt: skip
    """activation(input times the transpose of weight, plus bias, plus residual), all three but the bias as codes.

    input [..., in] uint8 or int8 codes, weight [out, in] int8 codes with the zero point 0, weight_scale [out], bias
    [out], residual [..., out] codes -> [..., out] float32, or codes where output_qparams are given. Raises ShapeError
    for shapes that do not fit.
    """
    sums = (as_matrix(input).astype(np.float64) - input_qparams.zero_point) @ weight.T.astype(np.float64)
    sums = sums.reshape(*input.shape[:-1], len(weight))
    more = None if residual is None else dequantize_per_tensor.reference.run(residual, residual_qparams)
    return requantized(sums, _factor(weight_scale, input_qparams), bias, more, activation, output_qparams)


@linear_int8.check
def linear_int8_check(
    input, weight, weight_scale, bias, residual, input_qparams, activation, output_qparams, residual_qparams
):
    check_choice("linear_int8", "activation", activation, *ACTIVATIONS)
    shape, kernel = np.shape(input), np.shape(weight)
    if len(kernel) != 2 or shape[-1:] != kernel[1:]:
        got = f"input {list(shape)} and weight {list(kernel)}"
        raise ShapeError("linear_int8", "input [..., in] and weight [out, in]", got)
    _need_rows("linear_int8", kernel[0], weight_scale=weight_scale, bias=bias)


@op(cast=Cast.FP32, integers="float")
def conv2d_int8(
    input: Index, weight: Index, weight_scale: Array, bias: Array | None = None, residual: Index | None = None,
    stride=1, padding=0, dilation=1, groups: int = 1,
    input_qparams: Any = ONE, activation="", output_qparams: Any = None, residual_qparams: Any = None,
):  # fmt: skip
    """activation(the convolution of input with weight, plus bias, plus residual), all three but the bias as codes.

    input [N, C, H, W] codes, weight [O, C / groups, KH, KW] int8 codes, weight_scale and bias [O], residual as the
    output -> [N, O, H', W'] float32, or codes where output_qparams are given. Padding stands for the number 0. Raises
    ShapeError for shapes that do not fit.
    """
    geometry = geometry_of("conv2d_int8", input, weight, stride, padding, dilation)
    sums = convolve(input.astype(np.float64) - input_qparams.zero_point, weight.astype(np.float64), geometry, groups)
    more = None if residual is None else dequantize_per_tensor.reference.run(residual, residual_qparams)
    factor, bias = (_by_channel(each) for each in (_factor(weight_scale, input_qparams), bias))
    return requantized(sums, factor, bias, more, activation, output_qparams)


@conv2d_int8.check
def conv2d_int8_check(
    input, weight, weight_scale, bias, residual, stride, padding, dilation, groups, input_qparams, activation,
    output_qparams, residual_qparams,
):  # fmt: skip
    check_choice("conv2d_int8", "activation", activation, *ACTIVATIONS)
    shape, kernel = np.shape(input), np.shape(weight)
    if len(kernel) != 4 or len(shape) != 4 or shape[1] != kernel[1] * groups or kernel[0] % groups:
        got = f"input {list(shape)} and weight {list(kernel)}, {groups} groups"
        raise ShapeError("conv2d_int8", "input [N, C, H, W] and weight [O, C / groups, KH, KW]", got)
    _need_rows("conv2d_int8", kernel[0], weight_scale=weight_scale, bias=bias)
    geometry_of("conv2d_int8", input, weight, stride, padding, dilation)


def requantized(
    sums: Array, factor: Array, bias: Array | None, residual: Array | None, activation: str, qparams: QParams | None
) -> Array:
    """Sums of products of codes as numbers, or as the codes of `qparams`; see the head of this file."""
    out = sums.astype(factor.dtype) * factor
    out = out if bias is None else out + bias
    out = _activated(out if residual is None else out + residual, activation)
    return out if qparams is None else to_codes(out, qparams)


def _activated(values: Array, activation: str) -> Array:
    if activation == "relu":
        return np.maximum(values, 0)
    if activation:
        approximate = "tanh" if activation == "gelu_tanh" else "none"
        return gelu.forward.reference.run(values, approximate)[0]
    return values


def _factor(weight_scale: Array, qparams: QParams) -> Array:
    return weight_scale * float32.type(qparams.scale)


def _by_channel(row: Array | None) -> Array | None:
    return None if row is None else row[:, None, None]


def _need_rows(where: str, count: int, **rows: Any) -> None:
    for name, row in rows.items():
        if row is not None and np.shape(row) != (count,):
            raise ShapeError(where, f"{name} [{count}], one number for each output", f"{name} {list(np.shape(row))}")
