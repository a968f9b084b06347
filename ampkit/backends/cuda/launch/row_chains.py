"""Reductions of rows that wait in a recording, and the chains that they are part of: one generated kernel for each.

A row is [cols], and every array of such a chain has a value for each element of the rows, or one for each row. The
prologue of a reduction is computed as the row is loaded, its epilogue while the row is still in registers
(row_source.py). The order of the sums is that of the reduction by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.broadcast_layout import merged
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array, DType
from ampkit.base.errors import UnsupportedError

from ..nvrtc import MAX_ELEMENTS, blocks_for
from . import row_source
from .elementwise import AXES, LaunchPlan
from .parameters import arguments
from .reduction import BLOCK, PART, Finish, run_rows
from .row_source import REPEATED, SCATTERED, WIDE, Reduction, RowArray, RowScalar, RowShape, RowStep
from .waiting import (
    Launch,
    Names,
    Value,
    also,
    distinct,
    is_cheap,
    is_value,
    layout_of,
    layout_record,
    reach,
    read_by,
    waiting_of,
)

MAX_STEPS, MAX_ARRAYS = 48, 14
WARP_ROW = 1024  # columns of a row that a warp reduces; see launch/reduction.py


class Rows(NamedTuple):
    """How the arrays of a chain lie: `size` rows of `cols` values, `vector` of them per access."""

    size: int
    cols: int
    vector: int

    @property
    def shape(self) -> RowShape:
        block = self.cols > WARP_ROW
        return RowShape(self.vector, blocks_for(self.cols, (BLOCK if block else 32) * self.vector), block)

    @property
    def blocks(self) -> int:
        return self.size if self.cols > WARP_ROW else blocks_for(self.size, BLOCK // 32)


class RowLaunch(Launch):
    """A reduction of rows that waits. term: of reductions.h."""

    __slots__ = ("finish", "rows", "term")
    shares = True  # whether other reductions may be in its chain

    def __init__(self, number: int, term: str, x: Value, rows: Rows, finish: Finish):
        plan = LaunchPlan((rows.size,), None, rows.blocks, None, None, ())
        super().__init__(number, f"{term} of rows", False, plan, (x,))
        self.key, self.term, self.rows, self.finish = ("rows", number), term, rows, finish

    @property
    def loads(self) -> tuple[Any, ...]:
        """The operands that are rows."""
        return self.operands

    def kernel(self, steps: list[Launch], stored: list[Value]) -> tuple[Any, ...]:
        """The code of the kernel of a chain, and what it is launched with: see CudaChains.emit."""
        return _kernel(steps, stored, self.rows)

    def run(self, operands: Any, outs: Any) -> None:
        run_rows(self.term, operands[0], outs[0], self.rows.size, self.rows.cols, self.finish)


def added(chains: Any, term: str, x: Array, count: int, cols: int, dtype: DType, finish: Finish) -> Array | None:
    """Let a reduction of `count` rows of x, contiguous, wait. -> its result [count]; None for one that must run now."""
    if chains.recording is None or cols > PART or count * cols > MAX_ELEMENTS:
        return None
    rows = Rows(count, cols, 8 if cols % 8 == 0 and x.data.ptr % 16 == 0 else 1)
    launch = RowLaunch(chains.number(), term, chains.operand(x), rows, finish)
    out = launch.plan.empty(x, dtype)
    launch.makes([chains.waits(out, launch, 0)])
    queue.waiting = True
    return out


def compute(chains: Any, wanted: list[Value]) -> bool:
    """Compute some of `wanted`, or what they need, by a chain of rows. -> whether there was one."""
    anchor = _anchor(wanted[0])
    if anchor is None:
        return False
    wanted = [one for one in wanted if _is_in(one.launch, anchor)]
    steps, early = _search(wanted, anchor)
    if not any(isinstance(step, RowLaunch) for step in steps) or len(steps) > MAX_STEPS:
        return False
    if early:
        chains.compute(distinct(early))
        return True
    beside = _beside(chains, steps, anchor)
    return _emitted(chains, anchor, [*wanted, *beside]) or bool(beside and _emitted(chains, anchor, wanted))


def _emitted(chains: Any, anchor: RowLaunch, wanted: list[Value]) -> bool:
    """Compute `wanted` by one chain, if it is not too long."""
    steps, _ = _search(wanted, anchor)
    stored = [*wanted, *also(steps, wanted)]
    given, stored = read_by(steps), distinct([*stored, *_read_later(chains, steps, stored)])
    if len(steps) < 2 or len(steps) > MAX_STEPS or len(given) + len(stored) > MAX_ARRAYS:
        return False
    chains.emit(steps, given, stored, lambda: anchor.kernel(steps, stored))
    return True


def _search(wanted: list[Value], anchor: RowLaunch) -> tuple[list[Launch], list[Value]]:
    """The launches of a chain that computes `wanted`, and what it reads that has to be computed before."""
    found, early = dict[int, Launch](), list[Value]()
    open_ = [one.launch for one in wanted]
    while open_:
        launch = open_.pop()
        if launch.number in found:
            continue
        found[launch.number] = launch
        for one in launch.operands:
            source = waiting_of(one)
            if source is None:
                continue
            if _is_in(source.launch, anchor) and _is_passed(launch, one, source, anchor):
                open_.append(source.launch)
            else:
                early.append(source)
    return [found[number] for number in sorted(found)], early


def _read_later(chains: Any, steps: list[Launch], stored: list[Value]) -> Iterator[Value]:
    """Further results of a chain that other launches will read, such as sums over columns, and that are not cheap."""
    inside = {step.number for step in steps}
    for value in chains.alive():
        others = [each for each in reach([value], True, stored) if each.number not in inside]
        sources = [waiting_of(one) for each in others for one in each.operands]
        for one in sources:
            if one is not None and one.launch.number in inside and one not in stored and not is_cheap(one, stored):
                yield one


def _beside(chains: Any, steps: list[Launch], anchor: RowLaunch) -> list[Value]:
    """Later results that are held and not cheap to compute, of what the chain of `steps` computes and reads alone.

    Such as the gradient of scaled scores, where a sum over columns needs that of a bias added to them.
    """
    there, computed, found = {layout_of(one.array) for one in read_by(steps)}, {each.number for each in steps}, []
    for value in chains.alive():
        launch = value.launch
        if launch.number in computed or launch.number < anchor.number or not _is_in(launch, anchor):
            continue
        more, early = _search([value], anchor)
        near = anchor in more and not early and all(layout_of(one.array) in there for one in read_by(more))
        if near and not is_cheap(value):
            found.append(value)
    return found


def _anchor(value: Value) -> RowLaunch | None:
    """The last reduction, or norm, that a value needs and shares its rows with."""
    for launch in reversed(reach([value], True)):
        if isinstance(launch, RowLaunch) and _is_in(value.launch, launch):
            return launch
    return None


def _is_in(launch: Launch, anchor: RowLaunch) -> bool:
    """Whether a launch may be part of the chain of `anchor`: its results are rows, or one value for each row."""
    rows, size = anchor.rows, prod(launch.plan.shape)
    if isinstance(launch, RowLaunch):
        return launch is anchor or (launch.shares and anchor.shares and launch.rows == rows)
    if type(launch) is not Launch:
        return False
    if not anchor.shares:
        return launch.plan.order is None and size == rows.size * rows.cols
    if launch.plan.order is not None or size not in (rows.size, rows.size * rows.cols):
        return False
    return size != rows.size or all(_is_of_rows(one, rows) for one in launch.operands if is_value(one))


def _is_of_rows(one: Value, rows: Rows) -> bool:
    """Whether an operand has one value for each row, or one for all."""
    return one.array.size == 1 or (one.array.size == rows.size and bool(one.array.flags.c_contiguous))


def _is_passed(launch: Launch, one: Value, source: Value, anchor: RowLaunch) -> bool:
    """Whether a launch reads a value of the chain at the element, or of the row, that it computes."""
    rows = anchor.rows
    if isinstance(launch, RowLaunch) and not any(one is each for each in launch.loads):
        return False
    if not anchor.shares and source.array.size != rows.size * rows.cols:
        return False
    if one.array.data.ptr != source.array.data.ptr or one.array.dtype != source.array.dtype:
        return False
    whole = isinstance(launch, RowLaunch) or prod(launch.plan.shape) != rows.size
    if source.array.size != rows.size or not whole:
        same = one.array.size == source.array.size == (rows.size * rows.cols if whole else rows.size)
        return same and bool(one.array.flags.c_contiguous)
    axes = [axis for axis in _axes(launch, [one]) if axis[0] > 1]
    return axes == [axis for axis in [(rows.size, (1, rows.cols)), (rows.cols, (0, 1))] if axis[0] > 1]


def _axes(launch: Launch, operands: list[Value]) -> Any:
    layouts = [(one.array.shape, one.array.strides, one.array.dtype) for one in operands]
    return merged(launch.plan.shape, launch.plan.order, tuple(layouts))


def _kernel(steps: list[Launch], stored: list[Value], rows: Rows) -> tuple[Any, ...]:
    # Raises UnsupportedError for too many axes.
    places: dict[int, str] = {}
    inputs, scalars, layout = inputs_of(steps, stored, rows, places)
    names, described = Names(places), list[Any]()
    for step in steps:
        if isinstance(step, RowLaunch):
            operand, (value,) = names.operand(step.operands[0]), names.values(step)
            divisor = names.number(np.float32(step.finish.divisor))
            described.append(Reduction(step.term, operand, value, divisor, step.finish.root))
        else:
            described.append(RowStep(names.step(step), prod(step.plan.shape) != rows.size))
    outputs = tuple([(names.place(one), one.array.dtype) for one in stored])
    kinds = tuple([each for _, each in inputs]), tuple([each for _, each in scalars])
    code, name = row_source.source(tuple(described), *kinds, outputs, len(names.numbers), rows.shape)
    read = [one for one, _ in inputs], [one for one, _ in scalars]
    return code, name, rows.blocks, BLOCK, 0, *arguments(stored, *read, layout, names.numbers)


def inputs_of(
    steps: list[Launch], stored: list[Value], rows: Rows, places: dict[int, str]
) -> tuple[list[tuple[Value, RowArray]], list[tuple[Value, RowScalar]], Any]:
    """What is read from memory, each array once, and the kernel's argument that says how it lies. Fills `places`."""
    if any(one.array.data.ptr % 16 for one in stored):
        raise UnsupportedError
    whole, scalars = dict[Any, tuple[Value, Launch]](), dict[Any, Value]()
    for step in steps:
        of_rows = not isinstance(step, RowLaunch) and prod(step.plan.shape) == rows.size
        for one in step.loads if isinstance(step, RowLaunch) else step.operands:
            if not is_value(one) or waiting_of(one) is not None:
                continue
            key = layout_of(one.array)
            if of_rows:
                scalars.setdefault(key, one)
                places[id(one)] = f"w{list(scalars).index(key)}"
            else:
                whole.setdefault(key, (one, step))
                places[id(one)] = f"x{list(whole).index(key)}"
    dense = {key for key, (one, step) in whole.items() if _is_dense(one, rows, step.plan.order)}
    strided = [each for key, each in whole.items() if key not in dense]
    shapes = {step.plan.shape for _, step in strided}
    if len(shapes) > 1:
        raise UnsupportedError
    axes = _axes(strided[0][1], [one for one, _ in strided]) if strided else [(rows.size * rows.cols, (1,))]
    if len(axes) > AXES:
        raise UnsupportedError
    found, steps_of = list[tuple[Value, RowArray]](), dict[tuple[int, ...], int]()
    for key, (one, _) in whole.items():
        if key in dense:
            load = SCATTERED if one.array.data.ptr % 16 else WIDE
            found.append((one, RowArray(one.array.dtype, None, load)))
            continue
        place = [each is one for each, _ in strided].index(True)
        strides = tuple([row[place] for _, row in axes])
        row = steps_of.setdefault(strides, len(steps_of))
        found.append((one, RowArray(one.array.dtype, row, _load(one, axes[-1][0], strides))))
    single = [(one, RowScalar(one.array.dtype, one.array.size == 1)) for one in scalars.values()]
    layout = layout_record(rows.size * rows.cols, rows.cols, [size for size, _ in axes], list(steps_of))
    return found, single, layout


def _is_dense(one: Value, rows: Rows, order: tuple[int, ...] | None) -> bool:
    """Whether an array has the memory order of the results, of which `order` has the axes."""
    array = one.array
    if array.size != rows.size * rows.cols or (order is not None and array.ndim != len(order)):
        return False
    return bool((array if order is None else array.transpose(order)).flags.c_contiguous)


def _load(one: Value, size: int, strides: tuple[int, ...]) -> int:
    """How eight neighbours along the last axis, of `size`, are loaded."""
    if size % 8 or any(abs(step) > MAX_ELEMENTS for step in strides):
        return SCATTERED
    if not strides[-1]:
        return REPEATED
    apart = one.array.data.ptr % 16 or any(step % 8 for step in strides[:-1])
    return SCATTERED if strides[-1] != 1 or apart else WIDE
