"""Elementwise chains that read views of what waits, and concatenations: of each element they compute what it needs.

A rotary embedding, with halves that change places, is one kernel and so is its gradient: a view is pushed to the arrays
that its result is computed from, and a concatenation is a selection by the index. Each op's result is rounded, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array, bool_, float32

from ..nvrtc import MAX_ELEMENTS, STORED, blocks_for
from .chain_layout import Reading, chain_arrays
from .chain_source import Output, Select, Step, source
from .elementwise import BLOCK, PER_THREAD, LaunchPlan
from .index_map import Bound, IndexMap, identity, of_view
from .parameters import arguments
from .waiting import Launch, Names, Value, also, distinct, is_cheap, is_value, layout_of, view_of, waiting_of

MAX_STEPS, MAX_ARRAYS = 32, 14  # as of chains.py; steps that are computed at two places count twice
MAX_PIECES = 4  # each element of a concatenation computes all of them


class CatLaunch(Launch):
    """A concatenation that waits. join(out, pieces, axis) stores it; a piece is an array, or the number 0 for zeros."""

    __slots__ = ("axis", "join", "lengths", "starts")

    def __init__(
        self, number: int, plan: LaunchPlan, pieces: tuple[Any, ...], lengths: list[int], axis: int,
        join: Callable[..., None],
    ):  # fmt: skip
        super().__init__(number, "Cat", False, plan, pieces)
        self.key, self.axis, self.join, self.lengths = ("cat", number), axis, join, lengths
        self.starts = [sum(lengths[:i]) for i in range(len(pieces))]

    def piece(self, i: int, at: IndexMap, shape: Sequence[int]) -> IndexMap | None:
        """The map of a piece where `at` is that of the result, in a chain of this shape; None if it is never read."""
        return at.of_piece(self.axis, self.starts[i], self.lengths[i], shape)

    def run(self, operands: Any, outs: Any) -> None:
        self.join(outs[0], operands, self.axis)


def added(chains: Any, pieces: Sequence[Any], axis: int, join: Callable[..., None]) -> Array | None:
    """Let a concatenation wait, of arrays in the memory order of the result, and of a number of zeros in the place of
    an array. -> that; None if it must run now."""
    arrays = [one for one in pieces if not isinstance(one, int)]
    first, lengths = arrays[0], [one if isinstance(one, int) else one.shape[axis] for one in pieces]
    shape = (*first.shape[:axis], sum(lengths), *first.shape[axis + 1 :])
    count = prod(shape)
    if chains.recording is None or not 1 < len(pieces) <= MAX_PIECES or not 0 < count <= MAX_ELEMENTS:
        return None
    if first.dtype not in STORED | {bool_} or any(one.dtype != first.dtype or not one.size for one in arrays):
        return None
    plan = LaunchPlan(shape, None, blocks_for(count, BLOCK * PER_THREAD), None, None, ())
    operands = tuple([chains.operand(0.0 if isinstance(one, int) else one) for one in pieces])
    found = CatLaunch(chains.number(), plan, operands, lengths, axis, join)
    out = plan.empty(first, first.dtype)
    found.makes([chains.waits(out, found, 0)])
    queue.waiting = True
    return out


class Placed(NamedTuple):
    """A launch of a chain, at the elements that a map says.

    reads: per operand a number, a key of Search.read, or a value and a map; None for a piece that is never read.
    """

    launch: Launch
    map: IndexMap
    reads: tuple[Any, ...]


class Search:
    """What computes `wanted`, of one shape. placed: launches, by number and map. apart: what is computed before.

    read: arrays, each with the map of the elements that are read, by both. order, whole: of the chain.
    """

    def __init__(self, wanted: list[Value]):
        self.plan = wanted[0].launch.plan
        self.order = wanted[0].launch.order
        self.placed: dict[tuple[int, IndexMap], Placed] = {}
        self.read: dict[Any, tuple[Array, IndexMap]] = {}
        self.apart: list[Value] = []
        self.whole = identity(self.plan.shape)
        for one in wanted:
            self._place(one.launch, self.whole)

    @property
    def steps(self) -> list[Placed]:
        """In the order of the program."""
        return [self.placed[key] for key in sorted(self.placed, key=lambda key: key[0])]

    @property
    def is_mapped(self) -> bool:
        """Whether another kind of chain would not do."""
        return any(one.map != self.whole or isinstance(one.launch, CatLaunch) for one in self.placed.values())

    def _place(self, launch: Launch, at: IndexMap) -> None:
        if (launch.number, at) in self.placed or len(self.placed) > MAX_STEPS:
            return
        self.placed[launch.number, at] = Placed(launch, at, ())
        reads: list[Any] = []
        for i, one in enumerate(launch.operands):
            place = launch.piece(i, at, self.plan.shape) if isinstance(launch, CatLaunch) else at
            if place is None or not is_value(one):
                reads.append(None if place is None else one)
            else:
                reads.append(self._read(one, place.of_operand(one.array.shape)))
        self.placed[launch.number, at] = Placed(launch, at, tuple(reads))

    def _read(self, one: Value, at: IndexMap) -> Any:
        found = waiting_of(one)
        if found is None:
            key = layout_of(one.array), at
            self.read[key] = one.array, at
            return key
        view = of_view(one.array, found.array)
        place = None if view is None else at.then(view)
        if place is None or not self._inlines(found, place):
            self.apart.append(found)
            return None
        self._place(found.launch, place)
        return found, place

    def _inlines(self, value: Value, at: IndexMap) -> bool:
        """Whether a waiting value is computed where it is read."""
        launch = value.launch
        if type(launch) is not Launch and not isinstance(launch, CatLaunch):
            return False
        if at == self.whole and launch.order == self.order:
            return True
        if any(n > 1 and not any(row[k] for row in at.steps) for k, n in enumerate(self.plan.shape)):
            return False  # several elements read one
        mine, theirs = self.order[1], launch.order[1]
        if mine is not None and (theirs is None or abs(at.steps[theirs][mine]) != 1):
            return False  # neighbours are none there
        return not value.is_held() or is_cheap(value)


def compute(chains: Any, wanted: list[Value]) -> bool:
    """Compute `wanted`, of one key, by a chain with views or concatenations. -> whether there was one."""
    if type(wanted[0].launch) is not Launch and not isinstance(wanted[0].launch, CatLaunch):
        return False
    while True:
        found = Search(wanted)
        if not found.is_mapped or not 1 < len(found.placed) <= MAX_STEPS:
            return False
        if not found.apart:
            break
        chains.compute(distinct(found.apart))
        wanted = [one for one in wanted if one.launch is not None]
        if not wanted:
            return True
    steps = [one.launch for one in found.steps if one.map == found.whole]
    stored = [*wanted, *also(steps, wanted)]
    if len(found.read) + len(stored) > MAX_ARRAYS or any(_is_raw(found, one.launch, found.whole) for one in stored):
        return False
    given = [Value(one.array) for one in _readings(found)[0]]
    every = distinct([one.launch for one in found.steps])
    return bool(chains.emit(every, given, stored, lambda: _kernel(found, stored), False))


def _is_raw(found: Search, launch: Launch, at: IndexMap) -> bool:
    """Whether a result has elements of 16-bit arrays as they are: stored by a chain, a NaN may have other bits."""
    if not isinstance(launch, CatLaunch):
        return False
    for one in found.placed[launch.number, at].reads:
        if not isinstance(one, tuple):
            continue
        value, place = one
        if not isinstance(value, Value):
            if found.read[one][0].dtype not in (float32, bool_):
                return True
        elif _is_raw(found, value.launch, place):
            return True
    return False


def _readings(found: Search) -> tuple[list[Reading], list[Bound]]:
    """The arrays that are read, and all bounds."""
    bounds: dict[Bound, int] = {}
    readings = list[Reading]()
    shape = found.plan.shape
    for array, at in found.read.values():
        size = array.dtype.itemsize
        strides = at.strides(array.strides)
        if not at.bounds:
            seen = view_of(array, at.offset(array.strides), shape, strides)
            readings.append(Reading(seen, shape, strides))
            continue
        numbers = tuple([bounds.setdefault(one, len(bounds)) for one in at.bounds])
        readings.append(Reading(array, shape, strides, at.offset(array.strides) // size, numbers))
    for one in found.placed.values():
        for bound in one.map.bounds:
            bounds.setdefault(bound, len(bounds))
    return readings, list(bounds)


def _kernel(found: Search, stored: list[Value]) -> tuple[Any, ...]:
    readings, bounds = _readings(found)
    arrays = chain_arrays(found.plan, readings, stored, bounds)
    numbers, names = Names({}), dict[Any, str]()
    for i, key in enumerate(found.read):
        names[key] = f"x{i}"
    described: list[Step | Select] = []
    for one in found.steps:
        operands = [_name(names, numbers, each) for each in one.reads]
        values = tuple(numbers.values(one.launch))
        for value, made in zip(one.launch.values, values, strict=True):
            if value is not None and made is not None:
                names[id(value), one.map] = f"v{made[0]}"
        if isinstance(one.launch, CatLaunch):
            pieces, zeros = list[tuple[int | None, str]](), dict[None, str]()
            for i, name in enumerate(operands):
                if name is None:
                    continue
                if isinstance(one.reads[i], tuple):
                    pieces.append((_bound(found, one, i, bounds), name))
                else:
                    zeros[None] = name  # where no piece is
            described.append(Select((*pieces, *zeros.items()), values[0]))
        else:
            described.append(Step(one.launch.name, one.launch.backward, tuple(map(str, operands)), values))
    places = [int(names[id(one), found.whole][1:]) for one in stored]
    outputs = [
        Output(one.array.dtype, place, row) for one, place, row in zip(stored, places, arrays.outputs, strict=True)
    ]
    code, name = source(tuple(described), arrays.inputs, tuple(outputs), len(numbers.numbers), arrays.bounds)
    given = arguments(stored, [Value(one.array) for one in readings], (), arrays.layout, numbers.numbers, arrays.own)
    return code, name, blocks_for(prod(found.plan.shape), BLOCK * PER_THREAD), BLOCK, 0, *given


def _name(names: dict[Any, str], numbers: Names, one: Any) -> str | None:
    if one is None:
        return None
    if not isinstance(one, tuple):
        return numbers.number(one)
    return names[id(one[0]), one[1]] if isinstance(one[0], Value) else names[one]


def _bound(found: Search, one: Placed, i: int, bounds: list[Bound]) -> int | None:
    """The number of the bound within which a concatenation has its piece i; None if everywhere."""
    launch: Any = one.launch
    at = launch.piece(i, one.map, found.plan.shape)
    assert at is not None
    return bounds.index(at.bounds[-1]) if len(at.bounds) > len(one.map.bounds) else None
