"""gemm: one matrix product by oneDNN, whatever the formats and strides of its operands.

Where the machine multiplies a 16-bit format, the operands go in as they are stored and the sum, float32 inside, is
rounded once on its way out. Elsewhere they are widened, multiplied in float32 and the result is rounded: the same
values, but for the order of the sum.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import DType, float32, uint8
from ampkit.base.version_counter import derived_value

from ..device import in_format
from .library import library, multiplies
from .primitive import BIAS, DST, SRC, WEIGHTS, Call, HostArray, Layout, attributes, empty, packing, prepared, signed
from .reorder import FORMATS

WORTH = 1 << 15  # multiplications; below, a call of NumPy's own costs less
BLOCK = 512  # rows whose sums a product makes in one go: closer, and faster, than a product with all


def fits(a: HostArray, b: HostArray) -> bool:
    """Whether `product` is worth its call for these operands: [..., M, K] and [..., K, N]."""
    known = a.dtype in FORMATS and b.dtype == a.dtype and library() is not None
    enough = a.ndim > 1 < b.ndim and max(a.size * b.shape[-1], b.size * a.shape[-2]) >= WORTH
    return known and enough


class Kept(NamedTuple):
    """Whose second operand of a product it is: its version, and its array, which the operand may be a view of."""

    version: Any
    array: HostArray


def product(
    a: HostArray,
    b: HostArray,
    dtype: DType,
    bias: HostArray | None = None,
    kept: Kept | None = None,
    home: HostArray | None = None,
) -> HostArray | None:
    """a [..., M, K] times b [..., K, N], plus bias [N], in `dtype`; None where oneDNN has no fast code for it.

    Leading axes broadcast. Products are exact and summed in float32. home: where to leave it, if that has its shape.
    """
    if b.ndim == 2 and a.ndim > 2:
        rows = product(a.reshape(-1, a.shape[-1]), b, dtype, bias, kept)
        return None if rows is None else rows.reshape(*a.shape[:-1], b.shape[-1])
    if bias is not None:
        bias = np.ascontiguousarray(bias)  # oneDNN takes any other strides, and reads as if they were these
    if a.ndim != b.ndim:
        a, b = (array.reshape((1,) * (max(a.ndim, b.ndim) - array.ndim) + array.shape) for array in (a, b))
    lead = a.shape[:-2] if a.shape[:-2] == b.shape[:-2] else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = *lead, a.shape[-2], b.shape[-1]
    home = home if home is not None and home.shape == shape else None
    if a.dtype == b.dtype and multiplies(a.dtype):
        out = empty(shape, dtype) if home is None else home
        if (kept is not None and _by_packed(a, b, out, bias, kept)) or multiply(a, b, out, bias):
            return out
    return None if a.dtype == b.dtype == float32 else _widened(a, b, dtype, bias, home)


def computed(array: HostArray) -> HostArray:
    """`array` in the format that products of it are computed in, for one that several products share."""
    return array if multiplies(array.dtype) else in_format(array, float32)


def multiply(
    a: HostArray, b: HostArray, out: HostArray, bias: HostArray | None = None, scale: float = 1.0, more: bool = False
) -> bool:
    """Write scale * (a @ b) + bias to `out`, whose strides are free; False where oneDNN has no fast code for it.

    a [..., M, K] and b [..., K, N], of one format in which the machine multiplies and with as many axes; leading ones
    broadcast. more: add a @ b to what `out` holds.
    """
    a, b = _plain(a), _plain(b)
    key = ("matmul", *map(signed, (a, b, out, bias)), scale, more)
    call = prepared(key, lambda: _matmul(a, b, out, bias, scale, more))
    if call is None:
        return False
    call(*((a, b, out) if bias is None else (a, b, out, bias)))
    return True


def _matmul(a: HostArray, b: HostArray, out: HostArray, bias: HostArray | None, scale: float, more: bool) -> Call:
    after: list[tuple[Any, ...]] = [("sum", 1.0)] if more else [] if scale == 1 else [("linear", scale, 0.0)]
    return _call(a, Layout.of(b), out, bias, after)


def _call(a: HostArray, right: Layout, out: HostArray, bias: HostArray | None, after: Any = ()) -> Call:
    left, to = map(Layout.of, (a, out))
    row = None if bias is None else Layout((1,) * (a.ndim - 1) + bias.shape, bias.dtype, _strides(bias, a.ndim))
    described = [left.handle, right.handle, row and row.handle, to.handle, attributes(*after)]
    place = (WEIGHTS, right if right.settled else None)
    return Call("matmul", described, [(SRC, left), place, (DST, to), *([(BIAS, row)] if row else [])])


class Packed(NamedTuple):
    """A product, and the move of its second operand into the layout that it wants, of so many bytes."""

    run: Call
    move: Call
    layouts: tuple[int, int]
    nbytes: int


def packed_product(
    a: HostArray, b: HostArray, out: HostArray, bias: HostArray | None, after: Any = ()
) -> Packed | None:
    """The product a @ b + bias with b as oneDNN likes it best; None where it likes it as it lies."""

    def build() -> Packed | None:
        run = _call(a, Layout(b.shape, b.dtype, None), out, bias, after)
        ours, theirs = Layout.of(b), run.layouts[1]
        if ours.number == theirs.number:
            return None
        move = packing(ours, theirs)
        return Packed(run, move, (ours.number, theirs.number), theirs.nbytes)

    packed: Packed | None = prepared(("packed", *map(signed, (a, b, out, bias)), after), build)
    return packed


def moved(packed: Packed, b: HostArray) -> HostArray:
    room = empty((packed.nbytes,), uint8)
    packed.move(b, room)
    return room


def _by_packed(a: HostArray, b: HostArray, out: HostArray, bias: HostArray | None, kept: Kept) -> bool:
    """Write a @ b + bias to `out` with b as oneDNN likes it best, if that is kept; whether it was."""
    a = _plain(a)
    packed = packed_product(a, b, out, bias)
    if packed is None:
        return False
    room = derived_value(kept.version, kept.array, packed.layouts, lambda: moved(packed, b))
    if room is None:
        return False
    packed.run(*((a, room, out) if bias is None else (a, room, out, bias)))
    return True


class Weight:
    """The second operand of many products, packed for the first of them: `weight(a, out, bias, more)` as `multiply`.

    Of one format in which the machine multiplies; a, out and bias lie row after row, and differ in how many rows.
    """

    def __init__(self, b: HostArray):
        self.b = b
        self._rooms: dict[Any, HostArray] = {}
        self._calls: dict[Any, Any] = {}

    def __call__(self, a: HostArray, out: HostArray, bias: HostArray | None = None, more: bool = False) -> bool:
        key = len(a), bias is None, more
        if key not in self._calls:
            self._calls[key] = self._made(a, out, bias, more)
        call, room = self._calls[key]
        if call is None:
            return multiply(a, self.b, out, bias, more=more)
        call(*((a, room, out) if bias is None else (a, room, out, bias)))
        return True

    def _made(self, a: HostArray, out: HostArray, bias: HostArray | None, more: bool) -> Any:
        packed = packed_product(a, self.b, out, bias, (("sum", 1.0),) if more else ())
        if packed is None:
            return None, None
        if packed.layouts not in self._rooms:
            self._rooms[packed.layouts] = moved(packed, self.b)
        return packed.run, self._rooms[packed.layouts]


def _strides(bias: HostArray, axes: int) -> tuple[int, ...]:
    return (bias.nbytes,) * (axes - 1) + bias.strides


def _widened(
    a: HostArray, b: HostArray, dtype: DType, bias: HostArray | None, home: HostArray | None
) -> HostArray | None:
    wide, row = (in_format(a, float32), in_format(b, float32)), None if bias is None else in_format(bias, float32)
    out = product(*wide, float32, row, home=home if dtype == float32 else None)
    return None if out is None else in_format(out, dtype)


def folded(array: HostArray) -> HostArray:
    """[..., N] as [rows, N]."""
    return array if array.ndim == 2 else array.reshape(-1, array.shape[-1])


def column_sums(array: HostArray, dtype: DType | None) -> HostArray | None:
    """The gradient of a bias: [..., N] summed in float32 over all axes but the last; None where `dtype` is None.

    As a product with ones, which reads the array as it is stored, by all threads: a few times as fast as NumPy's sum,
    and closer to the truth.
    """
    if dtype is None:
        return None
    rows = folded(array)
    whole = len(rows) - len(rows) % BLOCK
    blocks = [rows[:whole].reshape(-1, BLOCK, rows.shape[1])] if whole else []
    total: Any = np.zeros(rows.shape[1])
    for each in (*blocks, rows[None, whole:]):
        sums = _block_sums(each)
        total += np.add.reduce(in_format(each, float32) if sums is None else sums, (0, 1), np.float64)
    return in_format(total.astype(np.float32), dtype)


def _block_sums(blocks: HostArray) -> HostArray | None:
    # [B, K, N] -> [B, 1, N]
    ones, out = _ones(blocks.shape[:2], blocks.dtype), empty((len(blocks), 1, blocks.shape[2]), float32)
    return out if fits(ones, blocks) and multiply(ones, blocks, out) else None


@lru_cache(64)
def _ones(shape: tuple[int, int], dtype: DType) -> HostArray:
    made = empty((shape[0], 1, shape[1]), dtype)
    made[...] = 1
    return made


def _plain(array: HostArray) -> HostArray:
    # oneDNN takes any positive strides, but only rows or columns that lie side by side are fast.
    if min(array.strides) > 0 and array.itemsize in array.strides[-2:]:
        return array
    return np.ascontiguousarray(array).reshape(-1).reshape(array.shape)  # an axis of one place may have a stride of 0
