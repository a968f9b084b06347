"""Descriptions of matrix products in BLAS's column-major terms; `matrices` builds them, `cublaslt` runs them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ampkit.base.dtypes import DType

MAX_SIZE = 2**31 - 1  # of rows, of columns and of the batch


class Epilogue(IntEnum):
    """cublasLtEpilogue_t: what is applied in float32 to alpha * op(a) op(b) + beta * c before it is stored in d.

    BIAS adds bias [rows of d] to each column. GELU (tanh approximation) follows; AUX also writes its input to aux, laid
    out like d with a leading dimension that is a multiple of 8. DGELU multiplies by the derivative at aux. BGRADB
    writes the column sums of op(b) to bias. bias has the dtype of d.
    """

    NONE = 1
    BIAS = 4
    GELU_AUX = 32 | 128
    GELU_AUX_BIAS = GELU_AUX | BIAS
    DGELU = 64 | 128
    BGRADB = 512

    @property
    def has_bias(self) -> bool:
        return bool(self & (4 | 512))

    @property
    def has_aux(self) -> bool:
        return bool(self & 128)


class Compute(IntEnum):
    """cublasComputeType_t: the accumulation type. TF32 rounds float32 operands to 10 bits of mantissa."""

    FLOAT32 = 68
    FLOAT64 = 70
    INT32 = 72
    TF32 = 77


class ScaleMode(IntEnum):
    """cublasLtMatmulMatrixScale_t: which values of an operand [rows, K] share a scale, and how scales lie in memory.

    SCALAR: all, by one float32. OUTER: a row, by float32 [rows]. STRIP: 128 values of a row, by float32
    [ceil(K / 128), rows]. SQUARE: 128 of each of 128 rows, by float32 [ceil(rows / 128), ceil(K / 128)], whose rows are
    padded to a multiple of 4. MX: 32 values of a row, by a power of two, E8M0. NV: 16 values of a row, by E4M3; both in
    tiles of 128 x 4 scales.
    """

    SCALAR = 0
    NV = 1
    MX = 2
    OUTER = 3
    STRIP = 4
    SQUARE = 5


class Matrix(NamedTuple):
    """A column-major matrix or batch of them: element (i, j) of matrix n is at n * stride + j * leading + i.

    Of float4_e2m1fn_x2 numbers count values, of which two neighbours in a column share a byte.
    """

    dtype: DType
    rows: int
    columns: int
    leading: int
    batch: int = 1
    stride: int = 0


class Memory(NamedTuple):
    """The addresses of a Product's operands and of the scales of a and b, or their alignments in bytes; c may be d."""

    a: int
    b: int
    c: int
    d: int
    bias: int = 0
    aux: int = 0
    a_scales: int = 0
    b_scales: int = 0


class Product(NamedTuple):
    """d = epilogue(alpha * op(a) op(b) + beta * c). transposed: whether op transposes a, and b.

    alignment: of the addresses in bytes, powers of two up to 256. aux_leading: the leading dimension of aux. scales:
    how those of a and b lie, where the operands are below 16 bits; an address of 0 is a scale of 1.
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
    scales: tuple[ScaleMode, ScaleMode] | None = None
