"""Formats below 16 bits at the level of arrays: codes from values, and values from codes.

    encode(values, dtypes.float8_e4m3fn, True, None) -> uint8       decode(codes, dtypes.float8_e4m3fn, float32)

Both are primitives that kernels of other ops call, too; neither scales. `cast_to` is the op of users.
"""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.base import dtypes
from ampkit.base.dtypes import FLOATS, NARROW, DType, float32, name_of, uint8
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, switch
from ampkit.base.formats import decode_reference, encode_reference, is_packed, values_of
from ampkit.core import random
from ampkit.core.autograd.traced_array import plain
from ampkit.core.dispatch import primitive
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.random import random_words
from ampkit.core.tensor import Tensor

__all__ = ["cast_to"]


@primitive("pointwise.formats")
def encode(values: Array, dtype: DType, saturate: bool, draw: tuple[int, int] | None) -> Array:
    """Codes uint8 [...] of values [...] in a dtype of NARROW; of float4_e2m1fn_x2 [..., n / 2], n even.

    values: float64, float32, float16 or bfloat16. saturate: whether what is beyond the largest magnitude, and inf,
    becomes the largest. draw: (seed, call) of a Stream's `take`, whose word i rounds element i stochastically, or None:
    to nearest, ties to even.
    """
    words: Any = None
    if draw is not None:
        words = backends.backend_of(values).constant(random_words(*draw, values.size).reshape(values.shape))
    with ignore_fp_errors():
        return encode_reference(values, dtype, saturate, words)


@primitive("pointwise.formats")
def decode(codes: Array, dtype: DType, to: DType) -> Array:
    """Values [...] in a floating-point dtype of uint8 codes [...]; of float4_e2m1fn_x2 [..., 2 n]."""
    with ignore_fp_errors():
        table = backends.backend_of(codes).constant(values_of(dtype).astype(to))
        return decode_reference(codes, dtype, table)


def cast_to(
    input: Tensor,
    dtype: Any,
    *,
    saturate: bool = True,
    rounding: str = "nearest",
    generator: random.Stream | None = None,
) -> Tensor:
    """input in a format below 16 bits, with a choice of what `Tensor.to` decides; or a tensor of one in a wider dtype.

    saturate: what is beyond the largest magnitude, and inf, becomes the largest; False makes it inf, in a format
    without inf NaN. rounding: to nearest, ties to even, or "stochastic": up with the probability of the fraction of a
    unit in the last place, from bits of `generator`, by default the default stream; the same on a CPU and on a GPU.
    float64 is rounded once, too. float4_e2m1fn_x2 holds two values in an element: input [..., 2 n] -> [..., n], and
    back. The gradient passes through as it does through `Tensor.to`.
    Raises DTypeError for other dtypes, ShapeError for an odd last axis, ArgumentError for another rounding.
    Gupta et al. 2015, arXiv:1502.02551, sec. 3 (stochastic rounding).
    """
    wanted, stored = dtypes.parse(dtype), input.array.dtype
    if rounding not in ("nearest", "stochastic"):
        raise ArgumentError("cast_to", "rounding as 'nearest' or 'stochastic'", repr(rounding)[:80])
    saturate = switch("cast_to", "saturate", saturate)
    if stored == wanted:
        return input
    if stored in NARROW and wanted in NARROW:
        input, stored = cast_to(input, float32), float32
    if {stored, wanted} & NARROW and (stored in FLOATS or wanted in FLOATS):
        draw = (generator or random.default).take() if rounding == "stochastic" and wanted in NARROW else None
        return cast_to_(input, wanted, saturate, draw, dtype=wanted)
    cure = "cast integers to float32 first: x.float()"
    raise DTypeError("cast_to", "a format below 16 bits and a floating-point dtype", _two(stored, wanted), cure)


def _two(of: DType, to: DType) -> str:
    return f"{name_of(of)} to {name_of(to)}"


@op(cast=Cast.WIDEST, moves=True, casts=True)
def cast_to_(input: Array, format, saturate, draw, *, dtype):
    """input encoded in `format`, below 16 bits, or decoded to it from such a one."""
    array = plain(input)
    if format in NARROW:
        return encode(array, format, saturate, draw).view(format), Saved(stored=array.dtype)
    return decode(array.view(uint8), array.dtype, format), Saved(stored=array.dtype)


@cast_to_.check
def cast_to_check(input, format, saturate, draw, dtype):
    if is_packed(format) and (not input.ndim or input.shape[-1] % 2):
        raise ShapeError("cast_to", "an even last axis, whose pairs share a byte", f"shape {tuple(input.shape)}")
    if is_packed(input.dtype) and not input.ndim:
        raise ShapeError("cast_to", "a last axis, of pairs", "a 0-d tensor")


@cast_to_.backward
def cast_to_backward(dy, saved, needs, format, saturate, draw, dtype):
    if is_packed(format):
        return decode(dy.view(uint8), format, float32)
    return encode(dy, saved.stored, True, None).view(saved.stored) if is_packed(saved.stored) else dy
