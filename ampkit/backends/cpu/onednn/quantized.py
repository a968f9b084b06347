"""Products and convolutions of 8-bit codes by oneDNN: int32 sums, then scale, bias, residual and activation in float32,
and codes again, all in one primitive.

    y = activation((sum over (x - input_zero_point) * weight) * scale[o] + bias[o] + residual)
    code = saturate(round(y / output_scale + output_zero_point)), to the nearest, ties to even

The sums are exact where the CPU `has_exact_int8`; elsewhere the references run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import DType, float32, int8, uint8

from ..channels_last import channels_last_layout, onednn_geometry
from .convolution import is_misread
from .library import INVALID, UNIMPLEMENTED, OneDNNError, create, library
from .primitive import (
    BIAS,
    DIRECT_CONVOLUTION,
    DST,
    INFERENCE,
    SCALES,
    SRC,
    WEIGHTS,
    Call,
    HostArray,
    Layout,
    empty,
    packing_reorder,
)

_ZERO_POINTS = 8192  # added to the number of an argument: its zero points
_ELTWISE = {"relu": 0x20, "gelu_tanh": 0x2B, "gelu": 0x31}
_KINDS = {int8: 5, uint8: 6}
_WITH_AMX = "brgconv:avx512_core_amx"


class Requantize(NamedTuple):
    """How sums become the result; see the head of this file.

    scale: float32 [out]. bias: float32 [out] or None. activation: "", "relu", "gelu" or "gelu_tanh". output_scale: None
    for a result in float32. residual_scale, residual_zero_point: of codes in the dtype of the result, None without.
    """

    input_zero_point: int
    scale: HostArray
    bias: HostArray | None
    activation: str
    out: DType
    output_scale: float | None = None
    output_zero_point: int = 0
    residual_scale: float | None = None
    residual_zero_point: int = 0


def _attributes(how: Requantize, channel_mask: int, residual: DType | None) -> Any:
    lib: Any = library()
    lib = lib.cdll
    made, post = create(lib, "primitive_attr_create"), create(lib, "post_ops_create")
    lib.dnnl_primitive_attr_set_scratchpad_mode(made, 1)
    lib.dnnl_primitive_attr_set_scales_mask(made, WEIGHTS, channel_mask)
    if how.input_zero_point:
        lib.dnnl_primitive_attr_set_zero_points_mask(made, SRC, 0)
    if how.residual_scale is not None and residual is not None:
        scale, kind = ctypes.c_float(how.residual_scale), _KINDS[residual]
        lib.dnnl_post_ops_append_sum(post, scale, how.residual_zero_point, kind)
    if how.activation:
        lib.dnnl_post_ops_append_eltwise(post, _ELTWISE[how.activation], ctypes.c_float(0), ctypes.c_float(0))
    if how.output_scale is not None:
        lib.dnnl_primitive_attr_set_scales_mask(made, DST, 0)
        if how.output_zero_point:
            lib.dnnl_primitive_attr_set_zero_points_mask(made, DST, 0)
    lib.dnnl_primitive_attr_set_post_ops(made, post)
    return made


def _constants(how: Requantize) -> list[tuple[int, HostArray]]:
    found = [(SCALES | WEIGHTS, how.scale)]
    if how.input_zero_point:
        found.append((_ZERO_POINTS | SRC, np.array([how.input_zero_point], np.int32)))
    if how.output_scale is not None:
        found.append((SCALES | DST, np.array([how.output_scale], np.float32)))
        if how.output_zero_point:
            found.append((_ZERO_POINTS | DST, np.array([how.output_zero_point], np.int32)))
    return found


class Prepared(NamedTuple):
    """A primitive with its weights packed, scales and zero points bound."""

    run: Call
    packed: HostArray
    bias: HostArray | None

    def __call__(self, codes: HostArray, out: HostArray) -> HostArray:
        self.run(codes, self.packed, out, *(() if self.bias is None else (self.bias,)))
        return out


def _prepared(
    kind: str, head: list[Any], codes: Layout, weight: HostArray, bias: Layout | None, to: Layout, tail: list[Any],
    how: Requantize, mask: int, avoid: str = "",
) -> Prepared:  # fmt: skip
    chosen = Layout(weight.shape, int8, None)
    attributes = _attributes(how, mask, to.dtype if how.residual_scale is not None else None)
    handles = [codes.handle, chosen.handle, bias and bias.handle, to.handle]
    uses = [(SRC, codes), (WEIGHTS, None), (DST, to), *([(BIAS, bias)] if bias else [])]
    call = Call(kind, [*head, *handles, *tail, attributes], uses, avoid=avoid, constants=_constants(how))
    packed = empty((call.layouts[1].nbytes,), uint8)
    packing_reorder(Layout.of(weight), call.layouts[1])(weight, packed)
    return Prepared(call, packed, how.bias)


def prepare_matmul(shape: tuple[int, int], dtype: DType, weight: HostArray, how: Requantize) -> Prepared | None:
    """The product of codes [rows, in] with weight [out, in]; None where oneDNN has no fast implementation."""
    to = Layout.dense((shape[0], len(weight)), how.out)
    bias = None if how.bias is None else Layout.dense((1, len(weight)), float32)
    return _built(lambda: _prepared("matmul", [], Layout.dense(shape, dtype), weight.T, bias, to, [], how, 1 << 1))


def prepare_convolution(
    shape: tuple[int, ...], dtype: DType, weight: HostArray, geometry: ConvGeometry, groups: int, how: Requantize
) -> Prepared | None:
    """The convolution of codes [N, C, H, W], stored channels-last, with weight [O, C / groups, KH, KW], as above."""
    o, *rest = weight.shape
    grouped = weight if groups == 1 else weight.reshape(groups, o // groups, *rest)
    to = channels_last_layout((shape[0], o, *geometry.output_size), how.out)
    bias = None if how.bias is None else Layout.dense((o,), float32)
    head, tail = [INFERENCE, DIRECT_CONVOLUTION], list(onednn_geometry(geometry))
    codes, mask = channels_last_layout(shape, dtype), 1 if groups == 1 else 3
    avoid = _WITH_AMX if is_misread(weight.shape, geometry, 64) else ""
    return _built(lambda: _prepared("convolution_forward", head, codes, grouped, bias, to, tail, how, mask, avoid))


def _built(build: Callable[[], Prepared]) -> Prepared | None:
    try:
        return build()
    except OneDNNError as error:
        if error.status not in (UNIMPLEMENTED, INVALID):
            raise
        return None
