"""Reductions over ranks, with sums in rank order: the same bits on all ranks, whatever arrives first.

Each rank receives its part of the array from all others, reduces it in the accumulator dtype, and sends the result to
all. float32 values that travel in 16 bits, the `wire` dtype, are so rounded once, and sums of 16-bit values once too,
where a sum from hop to hop rounds at each rank (docs/numerics.md has the bound). ZeRO++ (Wang et al. 2023,
arXiv:2306.10209) reduces gradients in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np

from .. import backends
from ..base.dtypes import LOW, Array, DType, accumulator, is_float
from ..base.errors import DTypeError
from ..core.casts import cast
from ..core.fp_errors import ignore_fp_errors
from .transport import Call, Transport

SMALL = 4096  # bytes: less is sent whole to every rank, in one exchange instead of two
BLOCK = 1 << 16  # elements: 256 KiB of float32


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


ReduceOp.RedOpType = ReduceOp  # type: ignore[attr-defined]  # PyTorch's name of the class of its members


_COMBINE: dict[ReduceOp, Any] = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum, ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor,
}  # fmt: skip
_BITWISE = frozenset({ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR})


def check(where: str, op: ReduceOp, dtype: DType, wire: DType | None = None) -> None:
    """Raise DTypeError for bits of floats, means of integers, and a wire dtype of anything but sums of floats."""
    if not isinstance(op, ReduceOp):
        raise DTypeError(where, "one of ReduceOp", repr(op))
    floats = is_float(dtype)
    if op in _BITWISE and floats:
        raise DTypeError(where, f"integers or bool for {op.name}", dtype.name)
    if op is ReduceOp.AVG and not floats:
        raise DTypeError(where, "floats for AVG", dtype.name, "use SUM, and divide it")
    if wire is not None and (wire not in LOW or not floats or op not in (ReduceOp.SUM, ReduceOp.AVG)):
        raise DTypeError(where, "float16 or bfloat16 as wire_dtype of a SUM or AVG of floats", f"{wire} for {op.name}")


@ignore_fp_errors()
def all_reduce(
    transport: Transport, call: Call, array: Array, op: ReduceOp, wire: DType | None = None,
    first_nonfinite: Array | None = None, tree: bool = False,
) -> None:  # fmt: skip
    """Replace the flat `array` of every rank by their reduction.

    wire: the dtype in which float32 or float64 values travel to the rank that adds them up, float16 or bfloat16; the
    sum travels back as it is. Before the values are rounded they are divided by the number of ranks, so that float16
    holds them. first_nonfinite, tree: as of `combined`, on the rank that adds the values up.
    """
    if transport.size == 1:
        return
    divided = wire is not None and wire != array.dtype
    sent = _divided(array, transport.size, wire) if wire is not None and divided else array
    combine = ReduceOp.SUM if divided else op
    if sent.nbytes <= SMALL:
        combined(_gathered(transport, call, [sent] * transport.size), combine, array, first_nonfinite, tree)
    else:
        whole = parts(array, transport.size)
        mine = whole[transport.rank]
        reduce_scatter(transport, call, parts(sent, transport.size), combine, mine, first_nonfinite, tree)
        transport.exchange(call, [mine] * transport.size, whole)
    if divided and op is ReduceOp.SUM:
        array *= array.dtype.type(transport.size)


def _divided(array: Array, count: int, dtype: DType) -> Array:
    backend = backends.backend_of(array)
    out = backend.empty(array.shape, dtype)
    for part in _blocks(array):
        backend.copy(out[part], array[part] / array.dtype.type(count))
    return out


def parts(array: Array, count: int) -> list[Array]:
    """`array` cut into `count` consecutive parts of equal size, or sizes that differ by one."""
    bounds = [array.size * i // count for i in range(count + 1)]
    return [array[begin:end] for begin, end in pairwise(bounds)]


@ignore_fp_errors()
def reduce_scatter(
    transport: Transport, call: Call, sent: list[Array], op: ReduceOp, out: Array,
    first_nonfinite: Array | None = None, tree: bool = False,
) -> None:  # fmt: skip
    """Write into `out` the reduction of what every rank has for this one.

    sent[r] is for rank r, of equal sizes on all ranks; `out` may be this rank's own part of them. tree: as of
    `combined`.
    """
    combined(_gathered(transport, call, sent), op, out, first_nonfinite, tree)


def _gathered(transport: Transport, call: Call, sent: list[Array]) -> list[Array]:
    """What every rank has for this one: its own part as it is, without a copy."""
    mine = sent[transport.rank]
    empty = backends.backend_of(mine).empty
    rows = [mine if rank == transport.rank else empty(mine.shape, mine.dtype) for rank in range(transport.size)]
    transport.exchange(call, sent, rows)
    return rows


def combined(
    rows: Sequence[Array], op: ReduceOp, out: Array, first_nonfinite: Array | None = None, tree: bool = False
) -> None:
    """Write the reduction of the rows, in order, into `out`: in the accumulator dtype, rounded once.

    `out` may be one of the rows. first_nonfinite: int32 [1], lowered to the first row that has inf or NaN, if any has.
    tree: combine neighbours, then their results, as `in_tree` does; else one row after the other.
    """
    dtype = rows[0].dtype
    carried, copy = accumulator(dtype) if is_float(dtype) else dtype, backends.backend_of(out).copy
    for part in _blocks(out):
        if tree:
            total = in_tree([cast(row[part], carried) for row in rows], _COMBINE[op])
        else:
            total = cast(rows[0][part], carried)
            for row in rows[1:]:
                total = _COMBINE[op](total, cast(row[part], carried))
        if first_nonfinite is not None:
            _lower(first_nonfinite, total, (cast(row[part], carried) for row in rows))
        copy(out[part], total / carried.type(len(rows)) if op is ReduceOp.AVG else total)


def in_tree(values: Sequence[Any], combine: Callable[[Any, Any], Any]) -> Any:
    """Neighbours of `values` combined, then the results in the same way, up to one; as many as a power of 2.

    What consecutive 2^k of them give is a value of the tree, whoever has computed it.
    """
    while len(values) > 1:
        values = [combine(left, right) for left, right in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _lower(first: Array, total: Array, rows: Iterable[Array]) -> None:
    # On a CPU the sum of the totals tells in most cases that all are finite; a GPU is not waited for.
    if backends.backend_of(total).name == "cpu" and np.isfinite(total.sum()):
        return
    for number, row in enumerate(rows):
        bad = np.logical_not(np.isfinite(row).all())
        first[...] = np.where(bad, np.minimum(first, number), first)


def _blocks(array: Array) -> Iterator[slice]:
    """`array` in parts so small that a CPU's cache holds their sums; a GPU's array as one part."""
    size = BLOCK if backends.backend_of(array).name == "cpu" else max(array.size, 1)
    return (slice(begin, begin + size) for begin in range(0, array.size, size))
