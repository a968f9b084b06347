"""Elementwise launches of a step that is being recorded, which wait until something needs their results.

What a kernel reads is computed before it runs, by one generated kernel per chain of waiting launches (chain_source.py).
A result that nothing alive holds is never stored. One that is held, but that nothing needs yet, goes on waiting as long
as its inputs are held by others, too: whoever needs it later computes it anew from them, which moves fewer bytes than
to store and to read it.

Launches wait as addresses, which keep no memory: whether a result is held is whether its allocation is alive.
Reductions, norms and losses wait, too, for kernels of their own, each with a prologue and an epilogue (row_chains,
template_chains, column_chains, prologue_chains), and so do concatenations and views (mapped_chains), and copies.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import ref

import numpy as np

from ampkit.backends.launch_queue import Chains, arrays_in, queue
from ampkit.base import observe
from ampkit.base.dtypes import Array, DType
from ampkit.base.errors import AmpkitError, UnsupportedError

from ..nvrtc import STORED, launch
from . import column_chains, elementwise, following, mapped_chains, prologue_chains, row_chains, template_chains
from .chain_layout import chain_arrays, whole
from .chain_source import Output, source
from .elementwise import BLOCK, LaunchPlan
from .parameters import arguments
from .waiting import (
    Block,
    Launch,
    Names,
    Value,
    also,
    distinct,
    distinct_arrays,
    is_cheap,
    is_value,
    layout_of,
    overlap,
    reach,
    same_array,
    summary,
    waiting_of,
)  # fmt: skip

MAX_STEPS = 32  # of a chain
MAX_ARRAYS = 14  # that a chain reads and stores: their elements lie in registers


class CudaChains(Chains):
    """The launches that wait in a recording. recording: a graph.Recording, from when it begins."""

    backend = "cuda"
    observers = 1  # the recording itself, which keeps what kernels read
    any_thread = False  # streams are those of the step's thread
    looks_ahead = True

    def __init__(self, backend: Any):
        self.gpu = backend
        self.values: dict[int, Value] = {}  # that wait, by the address of their memory
        self.blocks: dict[int, ref[Block]] = {}  # by address
        self.made = 0
        self.runs = False

    @property
    def recording(self) -> Any:
        return self.gpu.recording

    def add(self, name: str, backward: bool, plan: LaunchPlan, operands: Sequence[Any], dtypes: Any) -> Any:
        """Let a launch wait. -> its outputs, None for one that must run now: what it reads is computed by then."""
        if queue.owner != threading.get_ident():
            return None
        if self.recording is None or not plan.blocks:
            self.run(operands)
            return None
        like = next(one for one in operands if hasattr(one, "dtype"))
        found = Launch(self.number(), name, backward, plan, tuple([self.operand(one) for one in operands]))
        outs = tuple([None if dtype is None else plan.empty(like, dtype) for dtype in dtypes])
        found.makes([None if out is None else self.waits(out, found, i) for i, out in enumerate(outs)])
        queue.waiting = True
        return outs

    def cast(self, array: Any, dtype: DType) -> Any:
        """Let a cast of a floating-point array wait. -> the result, or None."""
        if queue.owner != threading.get_ident() or not isinstance(array, self.gpu.xp.ndarray):
            return None
        watched = len(observe.observers) > self.observers or observe.profilers
        if watched or not {array.dtype, dtype} <= STORED or array.data.device_id != self.gpu.index:
            return None
        before, queue.opened = queue.opened, True
        try:
            return elementwise.forward("Copy", (array,), dtype)
        except UnsupportedError:
            return None
        finally:
            queue.opened = before

    def add_rows(self, *reduction: Any) -> Any:
        """Let a reduction of rows wait: see row_chains.added."""
        return row_chains.added(self, *reduction) if queue.owner == threading.get_ident() else None

    def add_columns(self, x: Array, call: Any) -> Array | None:
        """Let a reduction of columns wait, a reduction.ColumnCall, if x does. -> its result, or None."""
        return column_chains.added(self, x, call) if queue.owner == threading.get_ident() else None

    def add_template(self, call: Any) -> bool:
        """Let a norm or a softmax of rows wait, a template_chains.TemplateCall. -> whether it does."""
        return queue.owner == threading.get_ident() and template_chains.added(self, call)

    def add_sequence(self, kernels: Any, reads: Sequence[Any], outs: Sequence[Any]) -> bool:
        """Let a prologue_chains.KernelSequence wait if what it loads first does. -> whether it does."""
        return queue.owner == threading.get_ident() and prologue_chains.added(self, kernels, reads, outs)

    def add_following(
        self, name: str, call: Callable[..., None], reads: Sequence[Array], outs: Sequence[Array]
    ) -> bool:
        """Let `call(reads, outs)` wait for the arrays `reads`, which wait; it runs right after they are computed."""
        return queue.owner == threading.get_ident() and following.followed(self, name, call, reads, outs)

    def add_copy(self, source: Any, target: Any) -> bool:
        return queue.owner == threading.get_ident() and following.copied(self, source, target)

    def add_cat(self, arrays: Sequence[Any], axis: int, join: Callable[..., None]) -> Array | None:
        """Let a concatenation wait: see mapped_chains.added."""
        if queue.owner != threading.get_ident():
            return None
        out = mapped_chains.added(self, arrays, axis, join)
        if out is None:
            self.run(arrays)
        return out

    def views_wait(self, array: Any) -> bool:
        return self.recording is not None and isinstance(array, self.gpu.xp.ndarray)

    def number(self) -> int:
        """Of a launch, in the order of the program."""
        self.made += 1
        return self.made

    def operand(self, operand: Any) -> Any:
        if not hasattr(operand, "dtype"):
            return np.float32(operand)
        memory = self._of(operand)
        if memory is not None and same_array(memory.array, operand):
            return memory
        recording = self.recording
        if not operand.nbytes or not recording.owns(operand):
            value = Value(operand)
            value.kept = operand
            return value
        value = Value(recording.address(operand))
        value.whole = memory
        if memory is not None and memory.array.dtype == operand.dtype:
            memory.views.append(ref(value))
            return value
        value.block = self._block(recording.work.at(operand.data.mem.ptr)())
        return value

    def waits(self, out: Array, launch: Launch, index: int) -> Value:
        value = Value(self.recording.address(out), launch, index)
        address = out.data.mem.ptr
        value.allocation = self.recording.work.at(address)
        if value.allocation is None:  # memory of others, such as that of gradients
            value.kept, value.allocation, address = out, lambda: out, -out.data.ptr
        self.values[address] = value
        return value

    def _of(self, array: Array) -> Value | None:
        # The waiting value whose memory holds an array.
        value = self.values.get(array.data.mem.ptr) if array.nbytes else None
        if value is None or value.launch is None or value.allocation() is None:
            return None
        return value

    def waiting_whole(self, array: Array) -> Value | None:
        """The waiting value of which a dense array is all elements."""
        value = self._of(array)
        if value is None or value.array.data.ptr != array.data.ptr or value.array.dtype != array.dtype:
            return None
        return value if value.array.size == array.size else None

    def _block(self, allocation: Any) -> Block:
        held = self.blocks.get(allocation.start)
        found = None if held is None else held()
        if found is None or found.allocation is not allocation:
            found = Block(allocation)
            self.blocks[allocation.start] = ref(found)
        return found

    def run(self, reads: Sequence[Any] | None = None, writes: Sequence[Any] = ()) -> None:
        """Compute what the arrays `reads` need, None for all; and what reads or makes the memory of `writes`."""
        if self.runs:
            return
        self.runs = True
        try:
            given = None if reads is None else arrays_in(reads)
            if given is None:
                self.compute(self.alive())
            else:
                xp = self.gpu.xp.ndarray
                read = [one for one in given if isinstance(one, xp)]
                wanted = [self._of(one) for one in read]
                self.compute([*[one for one in wanted if one is not None], *self._outside(read)])
                self.compute(list(self.conflicts([one for one in writes if isinstance(one, xp)])))
            queue.waiting = bool(self.alive())
        finally:
            self.runs = False

    def abandon(self) -> None:
        """Nothing was computed, as the recording has failed."""
        self.values.clear()

    def alive(self) -> list[Value]:
        for address, value in list(self.values.items()):
            if value.launch is None or value.allocation() is None:
                del self.values[address]
        return list(self.values.values())

    def _outside(self, read: list[Array]) -> list[Value]:
        """Waiting values in memory of others that the arrays `read` overlap."""
        others = [value for key, value in self.values.items() if key < 0 and value.launch is not None]
        return [value for value in others if overlap([value.array], read)]

    def conflicts(self, written: list[Array]) -> Iterator[Value]:
        # Waiting values that read memory that is about to be written, or that are stored there; others never are.
        for value in self.alive() if written else ():
            read = [one for step in reach([value], True) for one in step.operands if is_value(one)]
            near = [one.array for one in read if one.is_held() or waiting_of(one) is None]
            if overlap([value.array, *near], written):
                yield value

    def compute(self, wanted: list[Value]) -> None:
        while waiting := [value for value in wanted if value.launch is not None]:
            if column_chains.compute(self, waiting[0]) or prologue_chains.compute(self, waiting[0]):
                continue
            if row_chains.compute(self, waiting):
                continue
            key = waiting[0].launch.key
            alike = [value for value in waiting if value.launch.key == key]
            if not mapped_chains.compute(self, alike):
                self._compute_chain(alike)

    def _compute_chain(self, wanted: list[Value]) -> None:
        # `wanted` have one key.
        while True:
            wanted = [value for value in wanted if value.launch is not None]
            if not wanted:
                return
            steps = reach(wanted)
            inside = {step.number for step in steps}
            read = distinct([one for step in steps for one in step.operands if is_value(one)])
            needed = [one.whole or one for one in read]
            apart = [one for one in needed if one.launch is not None and one.launch.number not in inside]
            views = [one.whole for one in read if one.whole is not None and one.whole.launch is not None]
            if apart or views:
                self.compute(distinct([*apart, *views]))
                continue
            given = distinct_arrays([one for one in read if one.launch is None])
            together = [*wanted, *self.beside(steps, given)]
            for chosen in (together, wanted):
                steps = reach(chosen)
                stored = [*chosen, *also(steps, chosen)]
                fits = len(steps) <= MAX_STEPS and len(given) + len(stored) <= MAX_ARRAYS
                if fits or len(together) == len(wanted):
                    break
            if fits:
                break
            if len(wanted) > 1:
                self._compute_chain(wanted[: len(wanted) // 2])
            elif len(steps) > 1:
                first = steps[: len(steps) // 2]
                early = {step.number for step in first}
                later = [one for step in steps[len(first) :] for one in step.operands if is_value(one)]
                passed = [one for one in distinct(later) if one.launch is not None and one.launch.number in early]
                for one in passed or [value for value in first[-1].values if value is not None][:1]:
                    self._compute_chain([one])
            else:
                break
        stored = distinct(stored)
        self.emit(steps, given, stored, lambda: self._kernel(steps, given, stored))

    def beside(self, steps: list[Launch], given: list[Value]) -> list[Value]:
        """Later results that are held and not cheap to compute, from what `steps` compute and the arrays `given` alone.

        Such as the gradient of a gate, where that of its product's other factor is needed.
        """
        key, last, found = steps[0].key, steps[-1].number, list[Value]()
        there, computed = {layout_of(one.array) for one in given}, {step.number for step in steps}
        for value in self.alive():
            if value.launch.key != key or value.launch.number <= last:
                continue
            again = reach([value])
            read = [one for each in again for one in each.operands if is_value(one)]
            inside = computed | {each.number for each in again}
            near = any(each.number in computed for each in again)
            early = [one for one in read if one.launch is None or one.launch.number not in inside]
            known = all(waiting_of(one) is None and layout_of(one.array) in there for one in early)
            if near and known and not is_cheap(value):
                found.append(value)
        return found

    def emit(
        self, steps: list[Launch], given: list[Value], stored: list[Value], kernel: Any, apart: bool = True
    ) -> bool:
        """Launch `kernel`, which stores results of `steps`; else these one by one, if they may run apart. -> whether.

        kernel() -> code, name, blocks, threads, bytes of shared memory, *arguments.
        """
        memory = [self.memory(value) for value in stored]  # outputs, while they are written
        if (apart and len(steps) == 1) or not self._emit_chain(steps, given, stored, kernel):
            if not apart:
                return False
            self._one_by_one(steps, stored)
        for value, held in zip(stored, memory, strict=True):
            value.launch, value.block, value.allocation = None, held, None
        self.compute([each for step in steps for each in [one() for one in step.then] if each is not None])
        return True

    def memory(self, value: Value) -> Block | None:
        if value.kept is not None:
            return None
        allocation = value.allocation()
        if allocation is None and value.copy() is not None:
            return following.moved(self, value)
        if allocation is None:  # nobody holds it, and a later launch reads it
            made = value.launch.empty(value)
            value.moves_to(self.recording.address(made))
            allocation = self.recording.work.at(made.data.mem.ptr)()
        return self._block(allocation)

    def _one_by_one(self, steps: list[Launch], stored: list[Value]) -> None:
        """The launches as they would have run at once."""
        alone, held = len(steps) == 1, []  # what only later steps read
        for step in steps:
            outs: list[Any] = []
            for value in step.values:
                if value is None or value.launch is None:
                    outs.append(None)
                elif any(value is one for one in stored):
                    outs.append(value.array)
                elif alone and not step.stores_all:
                    outs.append(None)
                else:
                    held.append(self.memory(value))
                    outs.append(value.array)
            operands = [one.array if is_value(one) else float(one) for one in step.operands]
            step.run(operands, outs)
        if alone:
            queue.log.alone[f"{steps[0].title} has no other beside it"] += 1

    def _emit_chain(self, steps: list[Launch], given: list[Value], stored: list[Value], kernel: Any) -> bool:
        try:
            code, name, blocks, threads, shared, *arguments = kernel()
        except UnsupportedError:
            queue.log.alone["chains of arrays with too many axes"] += 1
            return False
        try:
            self.gpu.kernels.entry(code, name)
        except (AmpkitError, MemoryError):
            raise
        except Exception as error:  # of NVRTC, or of CuPy's cache
            _tell(name, error)
            return False
        launch(code, name, blocks, threads, *arguments, shared=shared)
        queue.log.chains.append(summary(steps, given, stored))
        return True

    def _kernel(self, steps: list[Launch], given: list[Value], stored: list[Value]) -> tuple[Any, ...]:
        arrays = chain_arrays(stored[0].launch.plan, [whole(one) for one in given], stored)
        places = {layout_of(one.array): f"x{i}" for i, one in enumerate(given)}
        read = [one for step in steps for one in step.operands if is_value(one) and one.launch is None]
        names = Names({id(one): places[layout_of(one.array)] for one in read})
        described = tuple([names.step(step) for step in steps])
        placed = zip(stored, arrays.outputs, strict=True)
        outputs = tuple([Output(one.array.dtype, names.place(one), row) for one, row in placed])
        code, name = source(described, arrays.inputs, outputs, len(names.numbers))
        passed = arguments(stored, given, (), arrays.layout, names.numbers)
        return code, name, steps[0].plan.blocks, BLOCK, 0, *passed


_told: set[str] = set()


def _tell(name: str, error: Exception) -> None:
    reason = (str(error).splitlines() or [""])[0]
    queue.log.alone[f"a chain whose kernel does not compile: {type(error).__name__}: {reason}"] += 1
    if type(error).__name__ not in _told:
        _told.add(type(error).__name__)
        said = f"compile: {name} runs launch by launch, with the same results: {type(error).__name__}: {reason}"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
