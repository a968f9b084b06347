"""Descriptions of matrix products in BLAS's column-major terms; `matrices` builds them, `cublaslt` runs them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ampkit.base.dtypes import DType

MAX_SIZE = 2**31 - 1  # of rows, of columns and of the batch


class Epilogue(IntEnum):
    """cublasLtEpilogue_t: what is applied in float32 to alpha * op(a) op(b) + beta * c before it is stored in d.

    BIAS adds bias [rows of d] to each column. RELU and GELU (tanh approximation) follow. AUX also writes the input of
    GELU to aux, laid out like d with a leading dimension that is a multiple of 8; for RELU a bit mask, multiple of 128.
    DRELU and DGELU multiply by the derivative at aux; BGRAD also writes the row sums of d to bias. BGRADA writes the
    row sums of op(a) to bias, BGRADB the column sums of op(b). bias has the dtype of d.
    """

    NONE = 1
    RELU = 2
    BIAS = 4
    RELU_BIAS = RELU | BIAS
    GELU = 32
    GELU_BIAS = GELU | BIAS
    RELU_AUX = RELU | 128
    RELU_AUX_BIAS = RELU_AUX | BIAS
    GELU_AUX = GELU | 128
    GELU_AUX_BIAS = GELU_AUX | BIAS
    DRELU = 8 | 128
    DRELU_BGRAD = DRELU | 16
    DGELU = 64 | 128
    DGELU_BGRAD = DGELU | 16
    BGRADA = 256
    BGRADB = 512

    @property
    def has_bias(self) -> bool:
        return bool(self & (4 | 16 | 256 | 512))

    @property
    def has_aux(self) -> bool:
        return bool(self & 128)


class Compute(IntEnum):
    """cublasComputeType_t: the accumulation type. TF32 rounds float32 operands to 10 bits of mantissa."""

    FLOAT32 = 68
    FLOAT64 = 70
    TF32 = 77


class Matrix(NamedTuple):
    """A column-major matrix or batch of them: element (i, j) of matrix n is at n * stride + j * leading + i."""

    dtype: DType
    rows: int
    columns: int
    leading: int
    batch: int = 1
    stride: int = 0


class Memory(NamedTuple):
    """The addresses of a Product's operands, or their alignments in bytes; c may be d."""

    a: int
    b: int
    c: int
    d: int
    bias: int = 0
    aux: int = 0


class Product(NamedTuple):
    """d = epilogue(alpha * op(a) op(b) + beta * c). transposed: whether op transposes a, and b.

    alignment: of the addresses in bytes, powers of two up to 256. aux_leading: the leading dimension of aux.
    """

    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    transposed: tuple[bool, bool]
    compute: Compute
    alignment: Memory
    epilogue: Epilogue = Epilogue.NONE
    aux_leading: int = 0
