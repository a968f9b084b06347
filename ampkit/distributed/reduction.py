"""Reductions over ranks, with sums in rank order: the same bits on all ranks, whatever arrives first.

Each rank receives its part of the array from all others, reduces it in the accumulator dtype, and sends the result to
all. float32 values that travel in 16 bits, the `wire` dtype, are so rounded once, and sums of 16-bit values once too,
where a sum from hop to hop rounds at each rank (docs/numerics.md has the bound). ZeRO++ (Wang et al. 2023,
arXiv:2306.10209) reduces gradients in this way.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import DTypeError
from ..core.fp_errors import ignore_fp_errors
from .transport import Call, Transport

SMALL = 4096  # bytes: less is sent whole to every rank, in one exchange instead of two


class ReduceOp(Enum):
    """How values of several ranks become one; PyTorch's names. AVG is the sum divided by the number of ranks."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


_COMBINE: dict[ReduceOp, Any] = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum, ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor,
}  # fmt: skip
_BITWISE = frozenset({ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR})


def check(where: str, op: ReduceOp, dtype: DType, wire: DType | None = None) -> None:
    """Raise DTypeError for bits of floats, means of integers, and a wire dtype of anything but sums of floats."""
    if not isinstance(op, ReduceOp):
        raise DTypeError(where, "one of ReduceOp", repr(op))
    floats = dtypes.is_float(dtype)
    if op in _BITWISE and floats:
        raise DTypeError(where, f"integers or bool for {op.name}", dtype.name)
    if op is ReduceOp.AVG and not floats:
        raise DTypeError(where, "floats for AVG", dtype.name, "use SUM, and divide it")
    if wire is not None and (wire not in dtypes.LOW or not floats or op not in (ReduceOp.SUM, ReduceOp.AVG)):
        raise DTypeError(where, "float16 or bfloat16 as wire_dtype of a SUM or AVG of floats", f"{wire} for {op.name}")


@ignore_fp_errors()
def all_reduce(transport: Transport, call: Call, array: Array, op: ReduceOp, wire: DType | None = None) -> None:
    """Replace the flat `array` of every rank by their reduction.

    wire: the dtype in which float32 or float64 values travel to the rank that adds them up, float16 or bfloat16; the
    sum travels back as it is. Before the values are rounded they are divided by the number of ranks, so that float16
    holds them.
    """
    if transport.size == 1:
        return
    wire = array.dtype if wire is None else wire
    divided = wire != array.dtype
    sent = _cast(array / transport.size, wire) if divided else array
    if sent.nbytes <= SMALL:
        whole = np.empty_like(sent, shape=(transport.size, sent.size))
        transport.exchange(call, [sent] * transport.size, list(whole))
        array[...] = combined(whole, op, array.dtype)
    else:
        mine = reduce_scatter(transport, call, parts(sent, transport.size), op, array.dtype)
        transport.exchange(call, [mine] * transport.size, parts(array, transport.size))
    if divided:  # AVG has divided once more
        array *= array.dtype.type(transport.size)


def parts(array: Array, count: int) -> list[Array]:
    """`array` cut into `count` consecutive parts of equal size, or sizes that differ by one."""
    bounds = [array.size * i // count for i in range(count + 1)]
    return [array[begin:end] for begin, end in pairwise(bounds)]


@ignore_fp_errors()
def reduce_scatter(
    transport: Transport, call: Call, sent: list[Array], op: ReduceOp, dtype: DType | None = None
) -> Array:
    """The reduction of what every rank has for this one: `sent[r]` is for rank r, of equal sizes on all ranks.

    dtype: of the result, by default that of what was sent.
    """
    mine = sent[transport.rank]
    whole = np.empty_like(mine, shape=(transport.size, mine.size))
    transport.exchange(call, sent, list(whole))
    return combined(whole, op, dtype)


def combined(whole: Array, op: ReduceOp, out_dtype: DType | None = None) -> Array:
    """The reduction of the rows, in order: in the accumulator dtype, rounded once to `out_dtype`, by default theirs."""
    dtype = whole.dtype
    exact = op in (ReduceOp.MIN, ReduceOp.MAX) or op in _BITWISE or not dtypes.is_float(dtype)
    carried = dtype if exact else dtypes.accumulator(dtype)
    total = _cast(whole[0], carried, copy=True)
    for row in whole[1:]:
        _COMBINE[op](total, _cast(row, carried), out=total)
    if op is ReduceOp.AVG:
        total /= carried.type(len(whole))
    return _cast(total, out_dtype or dtype)


def _cast(array: Array, dtype: DType, copy: bool = False) -> Any:
    if array.dtype == dtype:
        return array.copy() if copy else array
    return backends.backend_of(array).cast(array, dtype)
