"""eltwise: functions of each element by oneDNN, for arrays that lie in one piece.

Only those that keep what is not finite, and their digits. oneDNN's exp, its relu that does not leak and the slope of
its elu make numbers of NaN; its elu is exp(x) - 1 as it stands, which loses small x; its softplus is 0 below -16, and
NaN at -inf. They are not used. Beyond 1e19, where a square overflows, its gelu gives inf or NaN.
"""

from __future__ import annotations

import ctypes
from functools import cache

from ...core.dtypes import DType, float32
from .device import in_format
from .dnnl import library
from .formats import FORMATS, flattened, reordered_like
from .onednn import (
    ALGORITHM,
    DIFF_DST,
    DIFF_SRC,
    DST,
    SRC,
    TRAINING,
    WORTH,
    Call,
    HostArray,
    Layout,
    attributes,
    described,
    empty,
    prepared,
)

_LARGE = 1 << 16  # elements of float32 from which on a function is worth its call that NumPy computes as fast


def fits(array: HostArray, *others: HostArray) -> bool:
    """Whether `array`, and `others` beside it, are large, of one format that oneDNN computes in, and lie alike."""
    return fit_widened(array, *others) and computes(array.dtype)


def fit_widened(array: HostArray, *others: HostArray) -> bool:
    """`fits`, or they could in float32: then what oneDNN does not compute in is widened, and the result rounded."""
    if array.size < WORTH or array.dtype not in FORMATS or not computes(float32) or flattened(array) is None:
        return False
    return all(each.dtype == array.dtype and each.strides == array.strides for each in others)


def worth(array: HostArray, *others: HostArray) -> bool:
    """`fits`, and it is large enough for a function that NumPy computes nearly as fast."""
    return array.size >= (_LARGE if array.dtype == float32 else WORTH) and fits(array, *others)


@cache
def computes(dtype: DType) -> bool:
    """Whether oneDNN has fast code for functions of elements in `dtype`."""
    return (
        library() is not None
        and prepared(("eltwise", "tanh", 0.0, WORTH, dtype), lambda: _forward("tanh", 0.0, WORTH, dtype)) is not None
    )


def forward(function: str, alpha: float, input: HostArray) -> HostArray:
    """`function` of each element, in the format and order of `input`, for which `fit_widened` holds."""
    flat = _computed(input)
    out = empty((flat.size,), flat.dtype)
    key = ("eltwise", function, alpha, flat.size, flat.dtype)
    prepared(key, lambda: _forward(function, alpha, flat.size, flat.dtype))(flat, out)
    return reordered_like(input, in_format(out, input.dtype))


def backward(function: str, alpha: float, dy: HostArray, input: HostArray) -> HostArray:
    """dy times the slope of `function` at each element of `input`, which lies as `dy` does.

    `function` "..._by_output" takes what the function gave for `input`.
    """
    slope, flat = _computed(dy), _computed(input)
    out = empty((flat.size,), flat.dtype)
    key = ("eltwise_backward", function, alpha, flat.size, flat.dtype)
    prepared(key, lambda: _backward(function, alpha, flat.size, flat.dtype))(slope, flat, out)
    return reordered_like(dy, in_format(out, dy.dtype))


def _computed(array: HostArray) -> HostArray:
    # Its elements in the order of memory, in a format that oneDNN computes in.
    flat = flattened(array)
    assert flat is not None
    return flat if computes(flat.dtype) else in_format(flat, float32)


def _forward(function: str, alpha: float, size: int, dtype: DType) -> Call:
    row, numbers = Layout.dense((size,), dtype), (ctypes.c_float(alpha), ctypes.c_float(0))
    given = [TRAINING, ALGORITHM[function], row.handle, row.handle, *numbers, attributes()]
    return Call("eltwise_forward", given, [(SRC, row), (DST, row)])


def _backward(function: str, alpha: float, size: int, dtype: DType) -> Call:
    row, numbers = Layout.dense((size,), dtype), (ctypes.c_float(alpha), ctypes.c_float(0))
    kind, handles = ALGORITHM[function], (row.handle, row.handle)
    hint = described("eltwise_forward", TRAINING, kind, *handles, *numbers, attributes())
    given = [kind, row.handle, *handles, *numbers, hint, attributes()]
    read = DST if function.endswith("_by_output") else SRC
    return Call("eltwise_backward", given, [(DIFF_DST, row), (read, row), (DIFF_SRC, row)])
