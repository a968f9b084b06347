"""Elementwise functions by oneDNN, for dense arrays.

Only those that keep what is not finite, and their digits. oneDNN's exp, its relu that does not leak and the grad of
its elu make numbers of NaN; its elu is exp(x) - 1 as it stands, which loses small x; its softplus is 0 below -16, and
NaN at -inf. They are not used. Beyond 1e19, where a square overflows, its gelu gives inf or NaN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ampkit.base.dtypes import LOW, DType, float32

from ..device import in_format
from .library import library
from .primitive import (
    ALGORITHM,
    DIFF_DST,
    DIFF_SRC,
    DST,
    MIN_ELEMENTS,
    SRC,
    TRAINING,
    Call,
    HostArray,
    Layout,
    attributes,
    cached,
    empty,
    primitive_desc,
)
from .reorder import FORMATS, fill, flat_view, unflatten

_PIECE = 1 << 17  # elements: three pieces, widened, are 1.5 MiB, shared by the threads' caches
_LARGE = 1 << 16  # elements of float32 from which on a function is worth its call that NumPy computes as fast


def fits(array: HostArray, *others: HostArray) -> bool:
    """Whether `array`, and `others` beside it, are large, of one dtype that oneDNN supports, and of one layout.

    Where it does not compute in that format, functions run `in_pieces`.
    """
    if array.size < MIN_ELEMENTS or array.dtype not in FORMATS or not computes(float32) or flat_view(array) is None:
        return False
    return all(each.dtype == array.dtype and each.strides == array.strides for each in others)


def is_profitable(array: HostArray, *others: HostArray) -> bool:
    """`fits`, and it is large enough for a function that NumPy computes nearly as fast."""
    return array.size >= (_LARGE if array.dtype == float32 else MIN_ELEMENTS) and fits(array, *others)


@cache
def computes(dtype: DType) -> bool:
    """Whether oneDNN has fast code for functions of elements in `dtype`."""
    return (
        library() is not None
        and cached(("eltwise", "tanh", 0.0, MIN_ELEMENTS, dtype), lambda: _forward("tanh", 0.0, MIN_ELEMENTS, dtype))
        is not None
    )


def in_pieces(run: Callable[..., Any], arrays: Sequence[HostArray], out: HostArray) -> bool:
    """run(*arrays, out), all flat; whether oneDNN had fast code for it, which `run` says.

    If it does not compute in their formats, a piece that the caches hold at a time: widened, and the result rounded.
    """
    if all(computing(array.dtype) == array.dtype for array in (*arrays, out)):
        return bool(run(*arrays, out))
    step = min(_PIECE, out.size)
    scratch = [a if computing(a.dtype) == a.dtype else empty((step,), float32) for a in (*arrays, out)]
    for start in range(0, out.size, step):
        parts = [_piece(array, buffer, start, step) for array, buffer in zip((*arrays, out), scratch, strict=True)]
        for array, part in zip(arrays, parts, strict=False):
            if part.dtype != array.dtype:
                fill(part, array[start : start + step])
        if not run(*parts):
            return False
        if parts[-1].dtype != out.dtype:
            fill(out[start : start + step], parts[-1])
    return True


def _piece(array: HostArray, scratch: HostArray, start: int, step: int) -> HostArray:
    # A slice of `array` where oneDNN computes in its dtype, else of the float32 scratch array.
    return array[start : start + step] if scratch is array else scratch[: min(step, array.size - start)]


def computing(dtype: DType) -> DType:
    """The format in which functions of arrays in `dtype` are computed: itself or float32."""
    return float32 if dtype in LOW and not computes(dtype) else dtype


def computed(array: HostArray) -> HostArray:
    """`array` in the format in which functions of it are computed."""
    return in_format(array, computing(array.dtype))


def forward(function: str, alpha: float, input: HostArray) -> HostArray:
    """`function` of each element, in the format and order of `input`, for which `fits` holds."""

    def run(flat: HostArray, out: HostArray) -> bool:
        key = ("eltwise", function, alpha, flat.size, flat.dtype)
        cached(key, lambda: _forward(function, alpha, flat.size, flat.dtype))(flat, out)
        return True

    flat = laid_flat(input)
    out = empty((flat.size,), flat.dtype)
    in_pieces(run, [flat], out)
    return unflatten(input, out)


def backward(function: str, alpha: float, dy: HostArray, input: HostArray) -> HostArray:
    """dy times the grad of `function` at each element of `input`, of the same layout as `dy`.

    `function` "..._by_output" takes what the function gave for `input`.
    """

    def run(grad: HostArray, flat: HostArray, out: HostArray) -> bool:
        key = ("eltwise_backward", function, alpha, flat.size, flat.dtype)
        cached(key, lambda: _backward(function, alpha, flat.size, flat.dtype))(grad, flat, out)
        return True

    grad, flat = laid_flat(dy), laid_flat(input)
    out = empty((flat.size,), flat.dtype)
    in_pieces(run, [grad, flat], out)
    return unflatten(dy, out)


def laid_flat(array: HostArray) -> HostArray:
    """The elements of `array`, for which `fits` holds, in the order of memory, as a view."""
    flat = flat_view(array)
    assert flat is not None
    return flat


def _forward(function: str, alpha: float, size: int, dtype: DType) -> Call:
    row, numbers = Layout.dense((size,), dtype), (ctypes.c_float(alpha), ctypes.c_float(0))
    given = [TRAINING, ALGORITHM[function], row.handle, row.handle, *numbers, attributes()]
    return Call("eltwise_forward", given, [(SRC, row), (DST, row)])


def _backward(function: str, alpha: float, size: int, dtype: DType) -> Call:
    row, numbers = Layout.dense((size,), dtype), (ctypes.c_float(alpha), ctypes.c_float(0))
    kind, handles = ALGORITHM[function], (row.handle, row.handle)
    hint = primitive_desc("eltwise_forward", TRAINING, kind, *handles, *numbers, attributes())
    given = [kind, row.handle, *handles, *numbers, hint, attributes()]
    read = DST if function.endswith("_by_output") else SRC
    return Call("eltwise_backward", given, [(DIFF_DST, row), (read, row), (DIFF_SRC, row)])
