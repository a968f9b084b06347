"""Elementwise launches that wait, and run together, tile by tile (chain.cpp).

    queue.opened = True
    y = forward("Silu", (x,), bfloat16)         # waits
    z = forward("Mul", (y, u), bfloat16)        # waits
    del y
    queue.flush()                               # one pass over memory; y is never stored

The launches of a chain have outputs of one shape and one order in memory. Each runs by the loops that it would run by
alone, on tiles cut where they would be cut then, so that the bits of its results are the same.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import CACHE_LINE, HostArray
from ampkit.backends.cpu.copies import copy
from ampkit.backends.cpu.native.arrays import FLOATS, Function
from ampkit.backends.launch_queue import Chains, FusedChain, queue
from ampkit.base import observe
from ampkit.base.dtypes import DType

from .elementwise import AXES, MIN_WAITING, OPERANDS, OUTPUTS, Plan, Tiles, plan_of

PAST_CACHES = 10 << 20  # bytes of what a chain reads and stores: of more, little is in a cache when it is read again
FLAT_BYTES = 1 << 11  # of a tile of an array; some lie in the first-level cache, and the call of a loop hardly shows
MAX_SUMMARIES = 1024
MAX_STEPS = 32  # of a chain; what waits keeps its operands alive
COPY = 0  # in the place of loops
_run_chain = Function("elementwise_chain", "pipt")
_step = struct.Struct(f"{3 + OPERANDS + 2 * OUTPUTS}q{OPERANDS}d").pack
_tiles = struct.Struct(f"{5 + 2 * AXES}q").pack


class _Launch:
    """A launch that waits. outs: its outputs, None where one is not wanted."""

    __slots__ = ("loops", "name", "operands", "outs", "plan")

    def __init__(self, name: str, plan: Plan, loops: int, operands: tuple[Any, ...], outs: tuple[Any, ...]):
        self.name, self.plan, self.loops, self.operands, self.outs = name, plan, loops, operands, outs

    def run(self) -> None:
        """Compute the outputs at once."""
        if self.loops == COPY:
            copy(self.outs[0], self.operands[0])
        else:
            self.plan.run(self.loops, self.operands, self.outs)


class _Chain:
    """Launches of one shape and memory order. tiles: how they are cut; any if that is flat."""

    __slots__ = ("launches", "tiles")

    def __init__(self, tiles: Tiles) -> None:
        self.launches: list[_Launch] = []
        self.tiles = tiles

    def takes(self, tiles: Tiles) -> bool:
        """Whether a launch with these tiles may join; if so, it is cut as all others are."""
        held = self.tiles
        if tiles.flat:
            return True
        if held.flat:
            self.tiles = tiles
            return True
        if (held.sizes, held.strides) != (tiles.sizes, tiles.strides):
            return False
        if tiles.exact and not held.exact:
            self.tiles = tiles
        return not (held.exact and tiles.exact) or (held.rows, held.columns) == (tiles.rows, tiles.columns)


_summaries: dict[bytes, FusedChain] = {}  # of chains that ran, by their steps
# By the shape and the memory order of their outputs; and which arrays wait, with the memory that they are views of.
_chains: dict[Any, _Chain] = {}
_makers: dict[int, _Chain] = {}
_memory: set[int] = set()


def add(name: str, plan: Plan, loops: int, operands: tuple[Any, ...]) -> Any:
    """Let a launch wait. -> its outputs, None for one that must run now: whatever it reads is computed by then."""
    if queue.owner != threading.get_ident():
        return None
    with queue.lock:
        tiles, key = plan.tiles, (plan.shape, plan.memory)
        chain = _chains.get(key)
        runs_alone = _reason(plan, operands)
        if not _fits(operands, None if runs_alone else chain, plan):
            queue.log.ends["a launch that reads it otherwise than element by element"] += 1
            queue.flush()
            chain = None
        if runs_alone or tiles is None:
            queue.log.alone[f"{name} {runs_alone}"] += 1
            return None
        if chain is not None and (len(chain.launches) == MAX_STEPS or not chain.takes(tiles)):
            queue.log.ends["another cut into tiles" if len(chain.launches) < MAX_STEPS else "a full chain"] += 1
            queue.flush()
            chain = None
        chain = _Chain(tiles) if chain is None else chain
        outs = tuple([None if dtype is None else plan.empty(dtype) for dtype in plan.dtypes])
        _chains[key] = chain  # again, where a finalizer has flushed
        _note(outs, chain)
        chain.launches.append(_Launch(name, plan, loops, operands, outs))
        queue.waiting = True
        return outs


def cast(array: HostArray, dtype: DType) -> HostArray | None:
    """Let a cast of a floating-point array wait, or a copy. -> the result, None for one that must run now."""
    if queue.owner != threading.get_ident() or array.size < MIN_WAITING or not {array.dtype, dtype} <= FLOATS:
        return None
    if observe.observers or observe.profilers or not (array.flags.c_contiguous or id(array) in _makers):
        return None
    outs = add("Copy", plan_of((array,), (dtype,)), COPY, (array,))
    return None if outs is None else outs[0]


def _reason(plan: Plan, operands: tuple[Any, ...]) -> str:
    # Why a launch cannot wait; "" if it can.
    if plan.count < MIN_WAITING:
        return "has few elements"
    if plan.tiles is None:
        return "reads a transposed array"
    aligned = all([operand.flags.aligned for operand in operands if isinstance(operand, np.ndarray)])  # noqa: C419
    return "" if aligned else "reads an array that is not aligned"


def _fits(operands: tuple[Any, ...], chain: _Chain | None, plan: Plan) -> bool:
    # Whether all operands are computed, or the whole outputs of the chain, in its memory order.
    for operand in operands:
        if not isinstance(operand, np.ndarray):
            continue
        maker = _makers.get(id(operand))
        if maker is None:
            if id(operand) in _memory or id(operand.base) in _memory:
                return False
        elif maker is not chain or operand.shape != plan.shape:
            return False
    return True


def _note(outs: tuple[Any, ...], chain: _Chain) -> None:
    for out in outs:
        if out is not None:
            _makers[id(out)] = chain
            _memory.add(id(out))
            if out.base is not None:
                _memory.add(id(out.base))
            if queue.fills:
                out.fill(np.nan if out.dtype != bool else True)


def references(array: HostArray) -> int:
    """How often the launches that wait refer to `array`."""
    held = [one for chain in _chains.values() for launch in chain.launches for one in (*launch.operands, *launch.outs)]
    return sum([one is array for one in held])


def run_all() -> None:
    """Run all chains, and forget them."""
    chains = list(_chains.values())
    _chains.clear()
    _makers.clear()
    _memory.clear()
    queue.waiting = False
    error: BaseException | None = None
    for chain in chains:
        launches, chain.launches = chain.launches, []
        try:
            _run(launches, chain.tiles)
        except BaseException as raised:  # no memory for tiles, or Ctrl-C: outputs never stay without their values
            for launch in launches:
                launch.run()
            error = error if isinstance(raised, MemoryError) else raised
    if error is not None:
        raise error


def _run(launches: list[_Launch], tiles: Tiles) -> None:
    if len(launches) == 1:
        launch = launches[0]
        launch.run()
        queue.log.alone[f"{launch.name} has no other beside it"] += 1
        return
    places = _Places(launches)
    steps = b"".join([places.packed(index, launch) for index, launch in enumerate(launches)])
    if tiles.flat:
        tiles = Tiles((1, launches[0].plan.count), (0, 1), 1, FLAT_BYTES // places.widest, False, True)
    rest = (0,) * (AXES - len(tiles.sizes))
    bytes_of_tile = -(-tiles.rows * tiles.columns * places.itemsize // CACHE_LINE) * CACHE_LINE
    buffers = places.buffers, bytes_of_tile
    cut = _tiles(len(tiles.sizes), tiles.rows, tiles.columns, *buffers, *tiles.sizes, *rest, *tiles.strides, *rest)
    arrays = tuple(places.arrays)
    _run_chain(steps, len(launches), cut, arrays)
    if (summary := _summaries.get(steps)) is None:
        if len(_summaries) == MAX_SUMMARIES:
            _summaries.clear()
        summary = _summaries[steps] = places.summary(launches)
    queue.log.chains.append(summary)


class _Places:
    """Where each step of a chain finds its operands and puts its outputs.

    arrays: in memory. buffers: how many of a tile, of elements of at most `itemsize` bytes; widest: those of outputs in
    memory, too.

    An output that nothing but the launches refers to, nor any view of it, lives in a buffer until its last reader has
    run. Others do, too, and are copied to memory past the caches, where the chain moves PAST_CACHES or more.
    """

    def __init__(self, launches: list[_Launch]):
        self.arrays: list[HostArray] = []
        self.buffers = self.itemsize = 0
        self.widest = max(out.itemsize for launch in launches for out in launch.outs if out is not None)
        self._numbers: dict[int, int] = {}  # of arrays in memory, by id
        self._held: dict[int, int] = {}  # buffers that are in use, by the id of the array
        self._free: list[int] = []
        self._last = {id(a): step for step, one in enumerate(launches) for a in one.operands}  # that reads it
        uses: dict[int, int] = {}
        for launch in launches:
            for operand in launch.operands:
                uses[id(operand)] = uses.get(id(operand), 0) + 1
        self.unseen = {id(out) for out in _unseen(launches, uses)}
        self._past_caches = self._moved(launches) >= PAST_CACHES

    def _moved(self, launches: list[_Launch]) -> int:
        # Bytes of the arrays in memory that the launches read and store.
        outs = {id(out): out for launch in launches for out in launch.outs if out is not None}
        read = {id(a): a for one in launches for a in one.operands if isinstance(a, np.ndarray) and id(a) not in outs}
        return sum([array.nbytes for array in (*read.values(), *outs.values()) if id(array) not in self.unseen])

    def packed(self, step: int, launch: _Launch) -> bytes:
        """`struct Step` of chain.cpp."""
        sources, numbers = [0] * OPERANDS, [0.0] * OPERANDS
        for i, operand in enumerate(launch.operands):
            if isinstance(operand, np.ndarray):
                sources[i] = self._source(operand)
            else:
                numbers[i] = operand
        targets = [0 if out is None else self._target(out) for out in launch.outs]
        stored = [self._stored(out) for out in launch.outs]
        for one in (*launch.operands, *launch.outs):  # the last to read a buffer has read it
            if id(one) in self._held and self._last.get(id(one), step) == step:
                self._free.append(self._held.pop(id(one)))
        plan = launch.plan
        flat = plan.tiles is not None and plan.tiles.flat
        missing = [-1] * (OUTPUTS - len(targets))
        return _step(launch.loops, plan.address, flat, *sources, *targets, *missing, *stored, *missing, *numbers)

    def _source(self, array: HostArray) -> int:
        held = self._held.get(id(array))
        return self._number(array) if held is None else -1 - held

    def _stored(self, out: HostArray | None) -> int:
        if out is None or id(out) in self.unseen or not self._past_caches:
            return -1
        return self._number(out)

    def _target(self, out: HostArray) -> int:
        if id(out) not in self.unseen and not self._past_caches:
            return self._number(out)
        self.itemsize = max(self.itemsize, out.itemsize)
        if not self._free:
            self._free.append(self.buffers)
            self.buffers += 1
        held = self._held[id(out)] = self._free.pop()
        return -1 - held

    def _number(self, array: HostArray) -> int:
        number = self._numbers.get(id(array))
        if number is None:
            number = self._numbers[id(array)] = len(self.arrays)
            self.arrays.append(array)
        return number

    def summary(self, launches: list[_Launch]) -> FusedChain:
        """What the chain was."""
        outs = [out for launch in launches for out in launch.outs if out is not None]
        of_each = [{id(a): a for a in launch.operands if isinstance(a, np.ndarray)} for launch in launches]
        read = [array for arrays in of_each for array in arrays.values()]
        stored = [out for out in outs if id(out) not in self.unseen]
        made = {id(out) for out in outs}
        given = {id(a): a for a in read if id(a) not in made}
        return FusedChain(
            tuple([launch.name for launch in launches]),
            launches[0].plan.shape,
            tuple([out.dtype.name for out in outs]),
            sum(_bytes(a) for a in (*read, *outs)),
            sum(_bytes(a) for a in (*given.values(), *stored)),
            len(stored),
        )


def _bytes(array: HostArray) -> int:
    # Of memory, where broadcasting repeats elements.
    count = 1
    for size, step in zip(array.shape, array.strides, strict=True):
        count *= size if step else 1
    return count * array.itemsize


def _unseen(launches: list[_Launch], uses: dict[int, int]) -> Iterator[HostArray]:
    # The outputs that nothing but the launches refers to.
    for launch in launches:
        outs = launch.outs
        for i in range(len(outs)):  # indices, as a variable would be another reference
            if outs[i] is None or sys.getrefcount(outs[i]) != _SOLE + uses.get(id(outs[i]), 0):
                continue
            memory = outs[i].base
            while isinstance(memory, np.ndarray) and sys.getrefcount(memory) == _SOLE + 1:  # its view and `memory`
                memory = memory.base
            if not isinstance(memory, np.ndarray):
                yield outs[i]


_sample = (np.empty(1),)
_SOLE = sys.getrefcount(_sample[0])  # of an array that one tuple alone refers to, which differs between Pythons


class CpuChains(Chains):
    """The chains of this module."""

    backend = "cpu"

    def add(self, *launch: Any) -> Any:
        return add(*launch)

    def cast(self, array: Any, dtype: Any) -> Any:
        return cast(array, dtype) if type(array) is np.ndarray else None

    def copy(self, array: Any) -> Any:
        return self.cast(array, array.dtype)

    def holds(self, array: Any) -> bool:
        return id(array) in _makers

    def references(self, array: Any) -> int:
        return references(array)

    def run(self, reads: Any = None, writes: Any = ()) -> None:
        run_all()


queue.cpu = CpuChains()
