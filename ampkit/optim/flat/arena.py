"""Arena: the parameters of an optimizer as flat memory.

One block per (parameter group, device, master dtype) holds masters, gradients, moments and 16-bit copies as flat
arrays; a parameter's values and gradient are views of its slot, a range that starts on a 256-byte boundary. What
concerns a whole group, the update, the norm, the check of a GradScaler, is then one operation on flat memory.
Gaps between slots hold zeros and stay zeros.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends import Array, Backend
from ampkit.base import dtypes
from ampkit.base.dtypes import LOW, DType, accumulator
from ampkit.base.errors import DeviceError, StateError
from ampkit.core import random
from ampkit.core.parameter import Parameter

from .memory import CHUNK, Draw, narrow, narrow_at_random
from .segment import Slot

ALIGN = 256  # bytes: what CUDA's allocator promises, and a multiple of every cache line and vector width


class Block:
    """Flat memory for parameters that share a group, a device and a master dtype.

    master: flat, in float32 or float64, or in the 16-bit dtype of parameters that are rounded at random. gradient:
    flat, in `dtype`, float32 or float64. moments: by name, like the gradient. copies: by 16-bit dtype. steps: per slot,
    the real steps it has taken, int64 on the device. draw: of the step under way, where it rounds at random.
    """

    def __init__(self, owner: Any, backend: Backend, master: DType, parameters: Sequence[tuple[int, Parameter]]):
        self.owner, self.backend, self.dtype = weakref.ref(owner), backend, accumulator(master)
        starts = _starts([p.array.size for _, p in parameters], ALIGN // master.itemsize)
        self.size = starts.pop()
        self.master, self.gradient = self._flat(master), self._flat(self.dtype)
        self.draw: Draw | None = None
        self.moments: dict[str, Array] = {}
        self.copies: dict[DType, Array] = {}
        self.steps = backend.zeros((len(parameters),), dtypes.int64)
        self._history = [0] * len(parameters)  # equal marks: present at the same steps, so equal in `steps`
        self._scratch: list[Array] = []
        self._flags: Array = None
        self.slots = [Slot(self, i, n, p, at) for i, ((n, p), at) in enumerate(zip(parameters, starts, strict=True))]
        with backends.device_guard(self.master):
            for slot in self.slots:
                self._move_in(slot)

    def _flat(self, dtype: DType) -> Array:
        spare = ALIGN // dtype.itemsize
        raw = self.backend.zeros((self.size + spare,), dtype)
        address = getattr(raw, "__array_interface__", {"data": (0,)})["data"][0]
        start = -address % ALIGN // dtype.itemsize
        return raw[start : start + self.size]

    def _move_in(self, slot: Slot) -> None:
        parameter, gradient = slot.parameter, slot.parameter._grad
        before = parameter.slot
        slot.of(self.master)[...] = parameter.array if before is None or not before.held() else before.master()
        home = self.copy(slot.stored) if slot.stored in LOW else self.master
        slot.array = slot.of(home)
        slot.array[...] = parameter.array
        if gradient is not None:
            slot.gradient[...] = gradient.array
            gradient.array = slot.gradient
        parameter.array, parameter.slot, parameter.copies = slot.array, slot, None

    def copy(self, dtype: DType) -> Array:
        """The flat 16-bit copy in `dtype`; made, unfilled, when it is first asked for."""
        if dtype == self.master.dtype:
            return self.master
        if dtype not in self.copies:
            self.copies[dtype] = self._flat(dtype)
        return self.copies[dtype]

    def moment(self, name: str) -> Array:
        """The flat moment `name`; zeros when it is first asked for."""
        if name not in self.moments:
            self.moments[name] = self._flat(self.dtype)
        return self.moments[name]

    def scratch(self, count: int) -> list[Array]:
        """`count` flat arrays of CHUNK elements (fewer for a small block) to work in."""
        while len(self._scratch) < count:
            self._scratch.append(self.backend.empty((min(CHUNK, self.size),), self.dtype))
        return self._scratch[:count]

    def flags(self) -> Array:
        """A flat array of CHUNK booleans to work in."""
        if self._flags is None:
            self._flags = self.backend.empty((min(CHUNK, self.size),), dtypes.bool_)
        return self._flags

    def runs(self, present: list[Slot]) -> list[Run]:
        """Runs of the `present` slots that have taken the same steps; call once per step, it keeps the record."""
        for slot in present:
            if slot.hidden:
                slot.master()
        self.draw = Draw(*random.default.take()) if present and self.master.dtype in LOW else None
        if len(present) != len(self.slots) or len(set(self._history)) > 1:
            self._refine(present)
        return spans(present, lambda slot: self._history[slot.index])

    def _refine(self, present: list[Slot]) -> None:
        # Slots of one mark that are no longer all present part ways: those present get a new mark.
        everywhere = Counter(self._history)
        here = Counter(self._history[s.index] for s in present)
        parted = [mark for mark, number in here.items() if number != everywhere[mark]]
        marks = dict(zip(parted, range(max(self._history) + 1, max(self._history) + 1 + len(parted)), strict=True))
        for slot in present:
            self._history[slot.index] = marks.get(self._history[slot.index], self._history[slot.index])

    def slot_at(self, offset: int) -> Slot:
        """The slot that holds the element at `offset`."""
        return self.slots[bisect_right([s.start for s in self.slots], offset) - 1]

    def load_steps(self, counts: list[int]) -> None:
        """Set the number of steps of every slot."""
        with backends.device_guard(self.steps):
            self.steps[...] = self.backend.asarray(counts, dtypes.int64)
        self._history = list(counts)


class Run:
    """Slots `first` to `last` (exclusive) of a block, which lie side by side, gaps included."""

    __slots__ = ("_wide", "block", "first", "last", "start", "stop")

    def __init__(self, block: Block, first: int, last: int):
        self.block, self.first, self.last = block, first, last
        self.start, self.stop = block.slots[first].start, block.slots[last - 1].stop
        self._wide: Array = None

    def __len__(self) -> int:
        return int(self.stop - self.start)

    @property
    def home(self) -> Array:
        """The master values, flat, as they are kept."""
        return self.block.master[self.start : self.stop]

    @property
    def master(self) -> Array:
        """The master values, flat, in the gradients' dtype; of masters in 16 bits a copy, which `written` rounds."""
        if self.block.master.dtype == self.block.dtype:
            return self.home
        if self._wide is None:
            self._wide = self.block.backend.cast(self.home, self.block.dtype)
        return self._wide

    @property
    def draw(self) -> Draw | None:
        """What rounds masters in 16 bits in this step."""
        return None if self.block.draw is None else self.block.draw.beyond(self.start)

    @property
    def gradient(self) -> Array:
        """The gradients, flat."""
        return self.block.gradient[self.start : self.stop]

    @property
    def copies(self) -> list[Array]:
        """The 16-bit copies that exist, flat; an update rewrites them."""
        return [flat[self.start : self.stop] for flat in self.block.copies.values()]

    @property
    def steps(self) -> Array:
        """How many real steps these slots have taken: 0-d int64, on the device."""
        return self.block.steps[self.first : self.first + 1].reshape(())

    def moment(self, name: str) -> Array:
        """The moment `name`, flat; zeros before the first step."""
        return self.block.moment(name)[self.start : self.stop]

    def written(self, go: Array | None) -> None:
        """Count the step (where `go`), and note that masters and copies were rewritten."""
        if self._wide is not None:
            narrow_at_random(self._wide, self.home, self.draw)
            for copy in self.copies:
                narrow(self.home, copy)
        steps = self.block.steps[self.first : self.last]
        np.add(steps, 1 if go is None else go, out=steps)
        for slot in self.block.slots[self.first : self.last]:
            slot.written()


def _starts(sizes: list[int], grain: int) -> list[int]:
    # Where each slot starts, and the size of all.
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // grain) * grain)
    return starts


def spans(slots: list[Slot], mark: Callable[[Slot], Any] = lambda slot: 0) -> list[Run]:
    """Runs of the neighbours with equal marks among `slots`, which come in the order of their blocks."""
    runs: list[Run] = []
    last: Slot | None = None
    begun = 0
    for slot in slots:
        if last is not None and (
            slot.block is not last.block or slot.index != last.index + 1 or mark(slot) != mark(last)
        ):
            runs.append(Run(last.block, begun, last.index + 1))
            last = None
        if last is None:
            begun = slot.index
        last = slot
    if last is not None:
        runs.append(Run(last.block, begun, last.index + 1))
    return runs


def adopt(owner: Any, parameters: Sequence[Parameter], first: int = 0, at_random: bool = False) -> list[Block]:
    """Move `parameters` into fresh blocks of `owner`; values, versions and gradients stay what they are.

    A parameter that lived in another optimizer's arena leaves it; that optimizer raises when it is used. first: the
    number that the optimizer gives to the first of them. at_random: 16-bit parameters get no float32 masters; updates
    round them at random.
    """
    kinds: dict[tuple[str, DType], list[tuple[int, Parameter]]] = {}
    for number, parameter in enumerate(parameters, first):
        dtype: DType = parameter.array.dtype
        master = dtype if at_random else accumulator(dtype)
        kinds.setdefault((str(parameter.device), master), []).append((number, parameter))
    _need_one_device(owner, {device for device, _ in kinds})
    return [
        Block(owner, backends.backend_of(members[0][1].array), dtype, members) for (_, dtype), members in kinds.items()
    ]


def _need_one_device(owner: Any, devices: set[str]) -> None:
    if len(devices) > 1:
        cure = "make a group for each device: [{'params': ...}, {'params': ...}]"
        where, found = f"{type(owner).__name__}, parameter group", ", ".join(sorted(devices))
        raise DeviceError(where, "parameters on one device", found, cure)


def bound(parameter: Any) -> bool:
    """Whether `parameter` lives in the arena of an optimizer that still exists; then its array must not be replaced."""
    slot = getattr(parameter, "slot", None)
    return slot is not None and slot.block.owner() is not None


def refuse_bound(where: str, parameters: Sequence[Parameter]) -> None:
    """Raise StateError if an optimizer holds one of `parameters`: what moves or retypes them must come first."""
    for parameter in parameters:
        if bound(parameter):
            cure = "move the model first, then make the optimizer; a trained model moves when its optimizer is gone"
            raise StateError(
                where,
                "parameters that no optimizer holds",
                f"{parameter.slot.title()}, which one holds",
                cure,
            )


def release(parameter: Parameter) -> None:
    """Give `parameter` memory of its own again."""
    with backends.device_guard(parameter.array):
        parameter.array, parameter.slot, parameter.copies = parameter.array.copy(), None, None
        if parameter._grad is not None:
            parameter._grad.array = parameter._grad.array.copy()
