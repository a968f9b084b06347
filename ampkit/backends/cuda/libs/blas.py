"""blas: a matrix product in BLAS's words, column after column. `matrices` makes one of arrays, `cublaslt` runs it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ampkit.base.dtypes import DType

MOST = 2**31 - 1  # rows, columns and matrices of a stack


class Epilogue(IntEnum):
    """What becomes of alpha * op(a) op(b) + beta * c before it is stored in d, in float32 but for what is stored.

    BIAS adds bias [rows of d] to each column. RELU and GELU, the approximation by tanh, follow it. AUX also leaves what
    GELU was given in aux, laid out like d with a leading dimension that is a multiple of 8, or for RELU a bit per
    element, of 128. DRELU and DGELU multiply by the slope at what aux holds; BGRAD leaves the sums of their rows in
    bias. BGRADA leaves the sums of op(a)'s rows in bias, BGRADB those of op(b)'s columns. Biases are stored as d is.
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
    """cublasComputeType_t: what products are summed in. TF32 rounds float32 operands to 10 bits after the point."""

    FLOAT32 = 68
    FLOAT64 = 70
    TF32 = 77


class Matrix(NamedTuple):
    """[rows, columns] of dtype, column after column: element (i, j) of the n-th is n * stride + j * leading + i."""

    dtype: DType
    rows: int
    columns: int
    leading: int
    batch: int = 1
    stride: int = 0


class Memory(NamedTuple):
    """The addresses, or what they are multiples of, that belong to a Product; c may be d."""

    a: int
    b: int
    c: int
    d: int
    bias: int = 0
    aux: int = 0


class Product(NamedTuple):
    """d = epilogue(alpha * op(a) op(b) + beta * c), where op turns the matrix if `turn` says so.

    alignment: bytes that the addresses are multiples of, powers of two up to 256. leading: aux's leading dimension.
    """

    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    turn: tuple[bool, bool]
    compute: Compute
    alignment: Memory
    epilogue: Epilogue = Epilogue.NONE
    leading: int = 0
