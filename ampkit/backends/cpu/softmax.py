"""Bodies of softmax and log_softmax: oneDNN's, along the last axis of arrays that lie in rows.

oneDNN lets a NaN or +inf spoil its own place and makes the rest of the slice 0 or -inf; here all of it becomes NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dtypes import DType, float32
from ...core.saved import Saved
from ...ops.softmax import log_softmax, softmax
from .convert import FORMATS
from .dnnl import library, make
from .eltwise import computes
from .gemm import folded
from .onednn import (
    ALGORITHM,
    DIFF_DST,
    DIFF_SRC,
    DST,
    SRC,
    TRAINING,
    Call,
    HostArray,
    Layout,
    attributes,
    empty,
    prepared,
    signed,
)

WORTH = 1 << 13  # elements; below, NumPy is as fast


def _forward(function: str, input: HostArray, out: HostArray) -> Call:
    of, to = Layout.of(input), Layout.of(out)
    described = [TRAINING, ALGORITHM[function], of.handle, to.handle, 1, attributes()]
    return Call("softmax_forward", described, [(SRC, of), (DST, to)])


def _backward(function: str, dy: HostArray, out: HostArray, dx: HostArray) -> Call:
    slope, of, to, lib = Layout.of(dy), Layout.of(out), Layout.of(dx), library()
    assert lib is not None
    kind = ALGORITHM[function]
    hint = make(
        lib.slow,
        "softmax_forward_primitive_desc_create",
        lib.engine,
        TRAINING,
        kind,
        of.handle,
        of.handle,
        1,
        attributes(),
    )
    described = [kind, to.handle, slope.handle, of.handle, 1, hint, attributes()]
    return Call("softmax_backward", described, [(DIFF_DST, slope), (DST, of), (DIFF_SRC, to)])


def rows_of(input: HostArray, function: str, dtype: DType) -> HostArray | None:
    """`function` of each row of [R, C], in `dtype`; None where oneDNN has no fast code."""
    out = empty(input.shape, dtype)
    call = prepared((function, signed(input), dtype), lambda: _forward(function, input, out))
    if call is None:
        return None
    call(input, out)
    return out


def row_gradients(dy: HostArray, out: HostArray, function: str, dtype: DType) -> HostArray | None:
    """The gradient of `rows_of`, from what it gave; None where oneDNN has no fast code."""
    dx = empty(out.shape, dtype)
    call = prepared((function, "back", signed(dy), signed(out), dtype), lambda: _backward(function, dy, out, dx))
    if call is None:
        return None
    call(dy, out, dx)
    return dx


def _fits(input: HostArray, dim: int) -> bool:
    last = dim in (-1, input.ndim - 1) and input.ndim > 0
    known = input.dtype in FORMATS and computes(input.dtype)
    return last and known and input.size >= WORTH and bool(input.flags.c_contiguous)


def _register(op: Any, function: str) -> None:
    def forward(input: HostArray, dim: int, dtype: DType) -> Any:
        out = rows_of(folded(input), function, float32)
        if out is None or dtype != float32:
            return NotImplemented
        spoiled = ~np.isfinite(out.max(1, initial=-np.inf))
        if spoiled.any():
            out[spoiled] = np.nan
        out = out.reshape(input.shape)
        return out, Saved(out=out)

    def back_fits(dy: HostArray, saved: Saved, needs: Any, dim: int, dtype: Any) -> bool:
        return needs[0] == float32 == dy.dtype == saved.out.dtype and _fits(saved.out, dim) and _fits(dy, dim)

    def backward(dy: HostArray, saved: Saved, needs: Any, dim: int, dtype: Any) -> Any:
        dx = row_gradients(folded(dy), folded(saved.out), function, float32)
        return NotImplemented if dx is None else dx.reshape(dy.shape)

    op.on("cpu", when=lambda input, dim, dtype: _fits(input, dim))(forward)
    op.backward_primitive.on("cpu", when=back_fits)(backward)


_register(softmax, "softmax")
_register(log_softmax, "log_softmax")
