"""Products of int8 matrices by oneDNN, summed in int32 without rounding."""

from __future__ import annotations

from ampkit.base.dtypes import int32

from ..copies import contiguous
from .library import has_exact_int8
from .primitive import DST, SRC, WEIGHTS, Call, HostArray, Layout, attributes, cached, empty, signature


def matmul(a: HostArray, b: HostArray) -> HostArray | None:
    """a [M, K] @ b [K, N] of int8 -> [M, N] int32; None where oneDNN has no fast and exact implementation."""
    if not has_exact_int8():
        return None
    out = empty((a.shape[0], b.shape[1]), int32)
    if not _multiply(a, b, out) and not _multiply(contiguous(a), b, out):
        return None
    return out


def _multiply(a: HostArray, b: HostArray, out: HostArray) -> bool:
    call = cached(("int8", signature(a), signature(b)), lambda: _call(a, b, out))
    if call is not None:
        call(a, b, out)
    return call is not None


def _call(a: HostArray, b: HostArray, out: HostArray) -> Call:
    left, right, to = map(Layout.of, (a, b, out))
    return Call(
        "matmul", [left.handle, right.handle, None, to.handle, attributes()], [(SRC, left), (WEIGHTS, right), (DST, to)]
    )
