"""Formats below 16 bits at the level of arrays: codes from values, and values from codes.

    encode(values, dtypes.float8_e4m3fn, True, None) -> uint8       decode(codes, dtypes.float8_e4m3fn, float32)

Both are primitives that kernels of other ops call, too; neither scales. `cast_to` is the op of users.
"""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.base.dtypes import Array, DType
from ampkit.base.formats import decode_reference, encode_reference, values_of
from ampkit.core.dispatch import Primitive
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.random import random_words

__all__: list[str] = []


def _encode(values: Array, dtype: DType, saturate: bool, draw: tuple[int, int] | None) -> Array:
    words: Any = None
    if draw is not None:
        words = backends.backend_of(values).constant(random_words(*draw, values.size).reshape(values.shape))
    with ignore_fp_errors():
        return encode_reference(values, dtype, saturate, words)


# (values [...] float64, float32, float16 or bfloat16; a dtype of NARROW; saturate: whether what is beyond the largest
# magnitude, and inf, becomes the largest; draw: (seed, call) of a Stream's `take`, whose word i rounds element i
# stochastically, or None: to nearest, ties to even) -> uint8 codes [...]; of float4_e2m1fn_x2 [..., n / 2], n even
encode = Primitive("encode", "pointwise.formats", _encode)


def _decode(codes: Array, dtype: DType, to: DType) -> Array:
    with ignore_fp_errors():
        table = backends.backend_of(codes).constant(values_of(dtype).astype(to))
        return decode_reference(codes, dtype, table)


# (uint8 codes [...]; a dtype of NARROW; a floating-point dtype) -> values [...]; of float4_e2m1fn_x2 [..., 2 n]
decode = Primitive("decode", "pointwise.formats", _decode)
