"""What waits in a recording: launches, and the arrays that they read and make (see chains.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import prod
from typing import Any
from weakref import ref

import numpy as np

from ampkit import backends
from ampkit.backends.launch_queue import FusedChain
from ampkit.base.dtypes import Array

from . import elementwise
from .chain_source import Step
from .elementwise import AXES, LaunchPlan

MAX_AGAIN = 8  # launches that are computed anew for a result that was not stored
_LAYOUT = [  # of ChainLayout, but for the strides
    *[(name, np.uint32) for name in ("count", "vector", "axes", "zero")],
    ("size", np.uint32, AXES),
]


def _none() -> None:
    """No value."""


class Block:
    """An allocation that launches read: kept for them."""

    __slots__ = ("__weakref__", "allocation")

    def __init__(self, allocation: Any):
        self.allocation = allocation

    def is_held(self) -> bool:
        """Whether an array holds it, too."""
        return sys.getrefcount(self.allocation) > 2


class Value:
    """An array that launches read or make. launch: which makes it, None once it is in memory.

    array: its address. allocation: a weak reference, of one that waits. block, kept: what keeps its memory, of one that
    is read from memory. whole: of a view, the waiting value whose memory holds it; views: of such a value, those that
    launches read, which do not keep the memory. copy: a weak reference to one that waits to be a copy of it.
    """

    __slots__ = ("__weakref__", "allocation", "array", "block", "copy", "index", "kept", "launch", "views", "whole")

    def __init__(self, array: Array, launch: Any = None, index: int = 0):
        self.array, self.launch, self.index = array, launch, index
        self.allocation: Any = None
        self.block: Block | None = None
        self.kept: Any = None
        self.whole: Value | None = None
        self.views: list[ref[Value]] = []
        self.copy: Callable[[], Value | None] = _none

    def moves_to(self, array: Array) -> None:
        """Its memory is another one."""
        before, self.array = self.array.data.ptr, array
        for view in filter(None, [each() for each in self.views]):
            seen = view.array
            view.array = view_of(array, seen.data.ptr - before, seen.shape, seen.strides)

    def is_held(self) -> bool:
        """Whether an array other than those of waiting launches holds its memory, or will hold a copy."""
        if self.allocation is not None and self.launch is not None:
            return self.allocation() is not None or self.copy() is not None
        if self.block is None and self.whole is not None:
            return self.whole.is_held()
        return self.block is None or self.block.is_held()


class Launch:
    """A launch that waits. values: its results, None where nobody wants one.

    order: their shape, and the axis along which they are contiguous. key: of those that may share a chain; order, where
    they may.

    moved: bytes that it would read and write by itself, 0 once a report has counted it. dtypes: of its results.
    """

    __slots__ = ("backward", "dtypes", "key", "made", "moved", "name", "number", "operands", "order", "plan", "then")
    stores_all = False  # whether it cannot leave out a result

    def __init__(self, number: int, name: str, backward: bool, plan: LaunchPlan, operands: tuple[Any, ...]):
        self.number, self.name, self.backward, self.plan, self.operands = number, name, backward, plan, operands
        order = plan.order or range(len(plan.shape))
        self.order = plan.shape, next((axis for axis in reversed(order) if plan.shape[axis] > 1), None)
        self.key: tuple[Any, ...] = self.order
        self.made: tuple[ref[Value] | None, ...] = ()  # who reads a value keeps it, and a value its launch: no cycles
        self.dtypes: tuple[str, ...] = ()
        self.moved = 0
        self.then: list[ref[Value]] = []  # what is computed right after it

    def makes(self, values: list[Value | None]) -> None:
        """`values` are its results."""
        self.made = tuple([None if value is None else ref(value) for value in values])
        made = [value for value in values if value is not None]
        self.dtypes = tuple([value.array.dtype.name for value in made])
        self.moved = sum(bytes_of(one.array) for one in distinct([*filter(is_value, self.operands), *made]))

    def run(self, operands: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run by itself, into `outs`."""
        elementwise.run(self.name, self.backward, self.plan, operands, outs)

    def costs(self) -> float:
        """Bytes read for a result that is computed anew, at most, over its own: it would be written and read once."""
        return 2.0

    def empty(self, value: Value) -> Array:
        """Allocate one of its results."""
        return self.plan.empty(value.array, value.array.dtype)

    @property
    def values(self) -> list[Value | None]:
        return [None if each is None else each() for each in self.made]

    @property
    def title(self) -> str:
        return f"{self.name} backward" if self.backward else self.name


def is_value(operand: Any) -> bool:
    """Whether an operand is an array, not a number."""
    return type(operand) is Value


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each object once, in order."""
    return list({id(value): value for value in values}.values())


def layout_of(array: Array) -> tuple[Any, ...]:
    """What identifies the elements of an array and their order: its address, shape, strides and dtype."""
    return array.data.ptr, array.shape, array.strides, array.dtype


def distinct_arrays(values: Iterable[Value]) -> list[Value]:
    """One value for each array, in order."""
    found: dict[tuple[Any, ...], Value] = {}
    for value in values:
        found.setdefault(layout_of(value.array), value)
    return list(found.values())


def same_array(first: Array, second: Array) -> bool:
    """Whether two arrays are the same elements of the same memory in the same order."""
    return layout_of(first) == layout_of(second)


def view_of(array: Array, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """An array in the memory of another one. offset, strides: in bytes."""
    backend: Any = backends.backend_of(array)
    memory = array.data.mem
    pointer = backend.xp.cuda.MemoryPointer(memory, array.data.ptr - memory.ptr + offset)
    made: Array = backend.xp.ndarray(tuple(shape), array.dtype, pointer, tuple(strides))
    return made


def extent(array: Array) -> tuple[int, int]:
    """The address of the first byte of an array, and that behind the last."""
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low = array.data.ptr + sum(step for step in steps if step < 0)
    return low, array.data.ptr + sum(step for step in steps if step > 0) + array.dtype.itemsize


def overlap(arrays: Iterable[Array], others: Iterable[Array]) -> bool:
    """Whether one of `arrays` may share memory with one of `others`."""
    ranges = [extent(one) for one in others if one.nbytes]
    extents = [extent(one) for one in arrays] if ranges else []
    return any(low < high_2 and low_2 < high for low, high in ranges for low_2, high_2 in extents)


def bytes_of(array: Array) -> int:
    """Of memory, where broadcasting repeats elements."""
    sizes = [size for size, step in zip(array.shape, array.strides, strict=True) if step]
    return prod(sizes) * int(array.dtype.itemsize)


def layout_record(count: int, vector: int, sizes: Sequence[int], rows: Iterable[Sequence[int]]) -> Any:
    """A ChainLayout: the length of each axis, and its strides for each of `rows`."""
    strides = list(rows)
    made = np.zeros(1, np.dtype([*_LAYOUT, ("stride", np.int32, (len(strides) + 1, AXES))]))
    made["count"], made["vector"], made["axes"] = count, vector, len(sizes)
    made["size"][0, : len(sizes)] = sizes
    for place, steps in enumerate(strides):
        made["stride"][0, place, : len(sizes)] = steps
    return made


def summary(steps: list[Launch], given: list[Value], stored: list[Value]) -> FusedChain:
    """What a chain was. A launch that was computed before reads and writes nothing more `before`."""
    before = sum(step.moved for step in steps)
    dtypes = [dtype for step in steps for dtype in step.dtypes]
    for step in steps:
        step.moved = 0
    after = sum(bytes_of(one.array) for one in (*given, *stored))
    names = tuple([step.title for step in steps])
    return FusedChain(names, steps[0].plan.shape, tuple(dtypes), before, after, len(stored))


def waiting_of(one: Any) -> Value | None:
    """The value that an operand is, or is a view of, if it waits."""
    found: list[Value] = [one, one.whole] if is_value(one) else []
    return next((each for each in found if each is not None and each.launch is not None), None)


def reach(wanted: Iterable[Value], across: bool = False, known: Collection[Value] = ()) -> list[Launch]:
    """The launches that compute `wanted` from memory and from what waits with other shapes; across: from memory.

    known: what will be in memory by then.
    """
    found: dict[int, Launch] = {}
    open_ = [value.launch for value in wanted if value.launch is not None]
    while open_:
        launch = open_.pop()
        if launch.number in found:
            continue
        found[launch.number] = launch
        for one in launch.operands:
            source = one.whole if across and is_value(one) and one.whole is not None else one
            if not is_value(source) or source.launch is None or source in known:
                continue
            if across or source.launch.key == launch.key:
                open_.append(source.launch)
    return [found[number] for number in sorted(found)]


def also(steps: list[Launch], wanted: list[Value]) -> Iterator[Value]:
    """Which other results of `steps` are stored at the same time: those that are held and not cheap to compute, or
    that will be copied."""
    stored = set(wanted)
    for step in steps:
        for value in step.values:
            if value is None or value.launch is None or value in stored or not value.is_held():
                continue
            if value.copy() is not None or not is_cheap(value, stored):
                stored.add(value)
                yield value


def prologue_of(chains: Any, x: Value, most: int) -> list[Launch] | None:
    """The launches that compute x where a kernel loads it, at most `most`. What these read of others is computed.

    None where there is no such prologue: x is computed by itself.
    """
    while x.launch is not None:
        steps = reach([x])
        inside = {step.number for step in steps}
        sources = [waiting_of(one) for step in steps for one in step.operands]
        apart = [one for one in sources if one is not None and one.launch.number not in inside]
        if len(steps) > most or any(step.plan.order != x.launch.plan.order for step in steps):
            return None
        if not apart:
            return steps
        chains.compute(distinct(apart))
    return None


def read_by(steps: Iterable[Launch]) -> list[Value]:
    """The arrays in memory that launches read, each once."""
    read = [one for step in steps for one in step.operands if is_value(one)]
    return distinct_arrays([one for one in read if waiting_of(one) is None])


def is_cheap(value: Value, stored: Collection[Value] = (), keeps: int = 0) -> bool:
    """Whether a waiting value may be computed anew by who reads it: from few arrays, which others hold, too.

    stored: what will be in memory by then. keeps: bytes of arrays, at most, that only launches hold.
    """
    again = reach([value], True, stored)
    operands = [one for each in again for one in each.operands if is_value(one)]
    read = distinct_arrays([one for one in operands if waiting_of(one) is None or waiting_of(one) in stored])
    cost = sum(bytes_of(one.array) for one in read)
    costs = min([each.costs() for each in again])
    cheap = len(again) <= MAX_AGAIN and cost <= costs * value.array.nbytes
    return cheap and sum(bytes_of(one.array) for one in read if not one.is_held()) <= keeps


class Names:
    """What the source of a kernel calls the operands and results of its launches; see chain_source.Step.

    of: by the id of a value, those that are read from memory first. numbers: what the kernel takes as arguments s0, s1,
    and so on. count: how many values it has.
    """

    def __init__(self, of: dict[int, str], count: int = 0):
        self.of, self.count, self.numbers = of, count, list[np.float32]()

    def operand(self, one: Any) -> str:
        """The name of a value that is read or was computed before, or of a number."""
        if is_value(one):
            return self.of.get(id(one)) or self.of[id(waiting_of(one))]
        return self.number(one)

    def number(self, number: np.float32) -> str:
        """The name of a new argument."""
        self.numbers.append(number)
        return f"s{len(self.numbers) - 1}"

    def values(self, launch: Launch) -> list[Any]:
        """Per result its number and dtype; None for one that nobody wants."""
        found: list[Any] = []
        for value in launch.values:
            if value is None or value.launch is None:
                found.append(None)
                continue
            found.append((self.count, value.array.dtype))
            self.of[id(value)] = f"v{self.count}"
            self.count += 1
        return found

    def step(self, launch: Launch) -> Step:
        """The function of a launch."""
        operands = tuple([self.operand(one) for one in launch.operands])
        return Step(launch.name, launch.backward, operands, tuple(self.values(launch)))

    def place(self, value: Value) -> int:
        """The number of a value that is computed."""
        return int(self.of[id(value)][1:])
