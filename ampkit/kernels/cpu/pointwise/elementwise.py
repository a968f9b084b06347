"""Calls of elementwise.cpp: a function of kernels/shared/functions.h of broadcast operands, any strides.

    forward("Silu", (x,), float16)                          one result, shaped as the operands broadcast
    backward("Mul", dy, (x, 2.0), (float32, None))          the gradients that are wanted

An operand is an array or a Python number. The layout that the C function reads is computed once per combination of
shapes, strides and dtypes, and cached.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.broadcast_layout import ArrayLayout, Axis, memory_order, merged
from ampkit.backends.cpu.caching_allocator import MIN_BYTES, HostArray, empty
from ampkit.backends.cpu.native.arrays import KINDS, Function
from ampkit.backends.cpu.native.library import library
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import DType, bfloat16, bool_, float16, float32
from ampkit.base.errors import UnsupportedError

OPERANDS, OUTPUTS, AXES, BLOCK = 4, 3, 6, 2048  # as in elementwise.cpp
_STORED = frozenset({float32, bfloat16, float16, bool_})
_NUMBER, _ABSENT = -1, -2  # kinds of operands that are no arrays, and of those and outputs that there are not
_NARROW = 16  # columns of a tile where an operand is transposed: a cache line of float32
_LONG = 1 << 14  # elements of a tile without buffers
MIN_WAITING = 1 << 20  # elements of a launch that waits: fewer stay in the caches, and a chain takes time to build
_SHORT = 256  # columns; shorter rows are computed several at a time, from buffers
_numbers = struct.Struct(f"{OPERANDS}d").pack
_layout = struct.Struct(f"{4 + OPERANDS + OUTPUTS + AXES * (OPERANDS + 2)}q").pack
_run = Function("elementwise", "pppptt", ctypes.c_int64)
_LOOPS = 25 * ctypes.sizeof(ctypes.c_void_p)  # bytes of `struct Loops`


class Tiles(NamedTuple):
    """How the results are cut into tiles.

    sizes, strides: of the axes of the results, in elements; the last two are cut. rows, columns: of a tile; of an
    `exact` one, the loops that are chosen, and so the bits, may depend on them. flat: whether all arrays have one
    element or the memory order of the results, without gaps: then any tiles will do.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    rows: int
    columns: int
    exact: bool
    flat: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One combination of shapes, strides and dtypes.

    shape: of the results. memory: their shape in memory, and the transposition that makes it theirs; None: row-major.
    has_numbers: whether some operands are numbers. dtypes: of the results. tiles: how chain.cpp may cut it; None: not.
    """

    shape: tuple[int, ...]
    memory: tuple[tuple[int, ...], tuple[int, ...]] | None
    count: int
    has_numbers: bool
    layout: ctypes.Array[ctypes.c_char]
    address: int  # of layout
    dtypes: tuple[DType | None, ...]
    tiles: Tiles | None

    def empty(self, dtype: DType) -> HostArray:
        """Allocate a result; small ones as NumPy does, which is quicker."""
        make: Any = np.empty if self.count * dtype.itemsize < MIN_BYTES else empty
        return make(self.shape, dtype) if self.memory is None else make(self.memory[0], dtype).transpose(self.memory[1])

    def run(self, loops: int, operands: tuple[Any, ...], outs: tuple[Any, ...], total: Any = None) -> None:
        """Compute `outs`, or add up the first one's elements to `total` in its place."""
        numbers = None
        if self.has_numbers:
            values = [0.0 if isinstance(operand, np.ndarray) else operand for operand in operands]
            numbers = _numbers(*values, *[0.0] * (OPERANDS - len(values)))
        if self.count and not _run(loops, self.address, total, numbers, operands, outs):
            raise UnsupportedError


def forward(name: str, operands: Sequence[Any], dtype: DType) -> Any:
    """Apply the function `name` to up to four operands, in float32, rounded once to `dtype`.

    The result has the memory order of the first operand of its shape. Raises UnsupportedError for dtypes and layouts
    that the kernel does not take, ValueError for shapes that do not broadcast.
    """
    operands = tuple(operands)
    plan, loops = _plan(_layouts(operands), (dtype,)), loops_of(name)
    if queue.opened and (outs := _waiting(name, plan, loops, operands)) is not None:
        return outs[0]
    out = plan.empty(dtype)
    plan.run(loops, operands, (out,))
    return out


def add_to(held: HostArray, other: HostArray) -> None:
    """held += other in place, both without gaps and in one memory order: the bits that `forward` gives of "Add"."""
    operands = held, other, 1.0
    _plan(_layouts(operands), (held.dtype,)).run(loops_of("Add"), operands, (held,))


def backward(name: str, dy: HostArray, operands: Sequence[Any], dtypes: Sequence[DType | None]) -> Any:
    """The gradients of `name`, one per entry of `dtypes`, None where that is None; otherwise as `forward`.

    Each has the shape that dy and the operands, up to three, broadcast to.
    """
    operands = (dy, *operands)
    plan, loops = _plan(_layouts(operands), tuple(dtypes)), loops_of(name) + _LOOPS
    if queue.opened and (outs := _waiting(f"{name} backward", plan, loops, operands)) is not None:
        return outs
    outs = tuple([None if dtype is None else plan.empty(dtype) for dtype in dtypes])
    plan.run(loops, operands, outs)
    return outs


def _waiting(name: str, plan: Plan, loops: int, operands: tuple[Any, ...]) -> Any:
    # The outputs of a launch that waits; None for one that must run now.
    if not queue.opens("cpu"):
        return None
    if plan.count < MIN_WAITING and not queue.waiting:
        queue.log.small += 1
        return None
    return queue.held.add(name, plan, loops, operands)


def total(name: str, operands: Sequence[Any], divisor: float, dtype: DType) -> Any:
    """The sum of the function's values, divided by `divisor`: [] in `dtype`. Summed in float64 beyond a tile."""
    operands, result = tuple(operands), ctypes.c_double()
    _plan(_layouts(operands), ()).run(loops_of(name), operands, (), ctypes.addressof(result))
    return np.asarray(result.value / divisor).astype(dtype)


@cache
def loops_of(name: str) -> int:
    """The address of the loops of a function: its value, then its gradients."""
    return ctypes.addressof(ctypes.c_void_p.in_dll(library(), f"elementwise_{name}"))


def plan_of(operands: tuple[Any, ...], dtypes: tuple[DType | None, ...]) -> Plan:
    """The plan of a launch with these operands and dtypes of outputs. Raises as `forward` does."""
    return _plan(_layouts(operands), dtypes)


def _layouts(operands: tuple[Any, ...]) -> tuple[ArrayLayout, ...]:
    return tuple([(a.shape, a.strides, a.dtype) if isinstance(a, np.ndarray) else None for a in operands])


@lru_cache(4096)
def _plan(layouts: tuple[ArrayLayout, ...], outs: tuple[DType | None, ...]) -> Plan:
    arrays = [layout for layout in layouts if layout is not None]
    stored = {dtype for _, _, dtype in arrays} | {dtype for dtype in outs if dtype is not None}
    if not stored <= _STORED or any(step % dtype.itemsize for _, strides, dtype in arrays for step in strides):
        raise UnsupportedError
    shape = np.broadcast_shapes(*(shape for shape, _, _ in arrays))
    order = memory_order(shape, layouts)
    axes = merged(shape, order, layouts) if prod(shape) else [(1, (0,) * (len(layouts) + 1))]
    if len(axes) > AXES:
        raise UnsupportedError
    kinds = [_NUMBER if layout is None else KINDS[layout[2]] for layout in layouts]
    kinds += [_ABSENT] * (OPERANDS - len(layouts)) + [_ABSENT if dtype is None else KINDS[dtype] for dtype in outs]
    kinds += [_ABSENT] * (OPERANDS + OUTPUTS - len(kinds))
    order = order or ()
    memory = (tuple([shape[i] for i in order]), tuple(np.argsort(order).tolist())) if order else None
    axes, transposed = _with_tiles(axes, len(layouts))
    packed, tiles = _packed(axes, transposed, kinds, len(layouts))
    layout = ctypes.create_string_buffer(packed)
    cut = None if transposed else tiles
    return Plan(shape, memory, prod(shape), None in layouts, layout, ctypes.addressof(layout), outs, cut)


def _packed(axes: list[Axis], transposed: bool, kinds: list[int], operands: int) -> tuple[bytes, Tiles]:
    """`struct Layout` of tiles.h, whose last two axes are those of the tiles, and what they are in a chain."""
    rows, columns = axes[-2][0], axes[-1][0]
    row_step = _row_step(axes, kinds, operands)
    buffer = BLOCK // 2 if max(kinds) else BLOCK  # buffers and what they are read from fit into the first-level cache
    block = _LONG if row_step else buffer
    across = min(columns, _NARROW if transposed else block)
    down = min(rows, block // across)
    sizes = [size for size, _ in axes] + [1] * (AXES - len(axes))
    table = [[0] * AXES for _ in range(OPERANDS + 1)]
    for i, (_, strides) in enumerate(axes):
        for operand in range(operands):
            table[operand][i] = strides[operand]
        table[OPERANDS][i] = strides[-1]
    packed = _layout(len(axes), down, across, row_step, *kinds, *sizes, *[step for row in table for step in row])
    if row_step:
        across = min(columns, BLOCK)
        down = min(rows, BLOCK // across)
    flat = len(axes) == 2 and rows == 1 and all(step in (0, 1) for step in axes[-1][1])
    strides = tuple([row[-1] for _, row in axes])
    return packed, Tiles(tuple(sizes[: len(axes)]), strides, down, across, not row_step, flat)


def _row_step(axes: list[Axis], kinds: list[int], operands: int) -> int:
    """How many elements of a row are computed at a time, in place, where all tensors are rows of float32, or broadcast
    along them; else 0.
    """
    columns, strides = axes[-1]
    tensors = [i for i in range(operands) if kinds[i] != _NUMBER]
    wanted = set(kinds[OPERANDS:]) - {_ABSENT}
    all_float32 = wanted == {KINDS[float32]} == {kinds[i] for i in tensors}
    steps = {strides[i] for i in tensors}
    if not all_float32 or columns < _SHORT or not steps <= {0, 1} or strides[-1] != 1:
        return 0
    constant = 0 in steps or len(tensors) < operands  # such an operand fills a buffer of BLOCK elements
    return BLOCK if constant else _LONG


def _with_tiles(axes: list[Axis], operands: int) -> tuple[list[Axis], bool]:
    """At least two axes, the last that of the results' rows; the one before along which a transposed operand is
    contiguous. -> whether there is one.
    """
    *outer, inner = axes
    for operand in range(operands):
        if inner[1][operand] not in (0, 1):
            for i, (_, strides) in enumerate(outer):
                if strides[operand] == 1:
                    return [*outer[:i], *outer[i + 1 :], outer[i], inner], True
    return [*(outer or [(1, (0,) * (operands + 1))]), inner], False
