"""Codes: 8-bit integers that stand for numbers on an evenly spaced grid, (code - zero_point) * scale.

Jacob, Kligys, Chen, Zhu, Tang, Howard, Adam, Kalenichenko 2017, arXiv:1712.05877, eq. 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ampkit.base.dtypes import DType, float32, int8, uint8
from ampkit.base.errors import NonFiniteError
from ampkit.core.dispatch import overrides, primitive
from ampkit.core.op import Array, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

MAX_CODE = 127  # of weights, whose codes are symmetric: -127 to 127


@dataclass(frozen=True, slots=True)
class QParams:
    """Quantization parameters of codes: value = (code - zero_point) * scale. signed: int8, else uint8."""

    scale: float
    zero_point: int = 0
    signed: bool = False

    @property
    def dtype(self) -> DType:
        """int8 or uint8."""
        return int8 if self.signed else uint8


ONE = QParams(1.0)  # of codes that are the numbers themselves


def to_codes(values: Array, qparams: QParams) -> Array:
    """saturate(round(values * (1 / scale) + zero_point)), in float32, to the nearest, ties to even."""
    limits = np.iinfo(qparams.dtype)
    grid = np.rint(values * np.float32(1 / qparams.scale) + np.float32(qparams.zero_point))
    return np.clip(grid, limits.min, limits.max).astype(qparams.dtype)


@op(cast=Cast.KEEP, integers="refuse")
def quantize_per_tensor(input: Array, qparams: Any = ONE):
    """The codes of `input` [...] under one scale and zero point: -> [...] uint8 or int8; see `to_codes`.

    Infinite values saturate. Raises NonFiniteError for NaN, which no code stands for.
    """
    if np.isnan(input).any():
        raise not_a_number()
    return to_codes(input, qparams)


def not_a_number() -> NonFiniteError:
    """The error of `quantize_per_tensor` for NaN."""
    cure = "run the model in float32 under ampkit.debug.detect_nonfinite, which names the op that makes it"
    return NonFiniteError("quantize_per_tensor", "activations without NaN", "some that are NaN", cure)


@primitive("quantized.codes")
def dequantize_per_tensor(codes: Array, qparams: QParams) -> Array:
    """The float32 values of int8 codes."""
    return (codes.astype(float32) - np.float32(qparams.zero_point)) * np.float32(qparams.scale)


class QuantizedTensor(Tensor):
    """A tensor that is held as codes: layers in int8 pass them on, and whatever else reads it sees float32 values.

    codes: a tensor of uint8 or int8. qparams: what they stand for. The values are computed when they are first read,
    and kept.
    """

    __torch_function__ = overrides.disabled

    def __init__(self, codes: Tensor, qparams: QParams):
        super().__init__(codes.array)
        self._values, self.codes, self.qparams = None, codes, qparams

    @property
    def array(self) -> Array:
        """The values in float32."""
        if self._values is None:
            self._values = dequantize_per_tensor(self.codes.array, self.qparams)
        return self._values

    @array.setter
    def array(self, values: Array) -> None:
        self._values = values

    def int_repr(self) -> Tensor:
        """The codes."""
        return self.codes

    def q_scale(self) -> float:
        """The distance of neighbouring values."""
        return self.qparams.scale

    def q_zero_point(self) -> int:
        """The code of 0."""
        return self.qparams.zero_point

    def dequantize(self) -> Tensor:
        """The values, as a plain tensor."""
        return Tensor(self.array)
