"""A training step captured as a CUDA graph and launched again.

Capture executes nothing. The addresses that the graph uses must stay valid: temporaries are allocated from the
GraphPool, and the recording holds references to arrays that existed before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any
from weakref import ref

import numpy as np

from ampkit.base import observe
from ampkit.base.dtypes import Array

from .device import CUDA
from .graph_pool import Footprint, Work

MAX_DROPS = 3  # a step dropped this often because others' arrays overlap its temporaries gets a pool of its own


class Constant:
    """Memory of values that a recorded step makes. It is deleted with the last array there.

    start: its address.
    """

    __slots__ = ("__weakref__", "start")

    def __init__(self, array: Array):
        self.start = int(array.data.mem.ptr)


class Recording:
    """A stream capture: what the host does at every launch, and the arrays it keeps alive.

    draws: [seed, call] uint64 on the device, from which kernels read the first random draw; first: its number during
    capture. later: arguments of `CUDA.call_when_ready`, called after each launch. work: the capture's allocations.
    kept: arrays that the graph reads and did not allocate, by address. around: make contexts in which it is launched.
    constants: by the address of each Constant, the array that its memory is and the values on the host. restored:
    arrays and the values that each launch begins with.
    """

    def __init__(self, backend: CUDA, seed: int, first: int):
        self.backend, self.seed, self.first = backend, seed, first
        self.draws = backend.zeros((2,), np.dtype(np.uint64))
        self._drawn: list[int | None] = [None, None]  # the values of `draws`
        self.constants: dict[int, tuple[Array, np.ndarray[Any, Any]]] = {}
        self.restored: list[tuple[Array, Array]] = []
        self.work = Work()
        self.kept: dict[int, Array] = {}  # by the address of their memory
        self.later: list[tuple[list[Array], Callable[..., None]]] = []
        self.around: list[Callable[[], AbstractContextManager[None]]] = []

    def owns(self, array: Array) -> bool:
        """Whether the capture allocated the memory of `array`, or it has none."""
        return not array.nbytes or array.data.mem.ptr in self.work.addresses

    def keep(self, arrays: Iterable[Any]) -> None:
        """Hold references to those of `arrays` that the capture did not allocate."""
        for array in arrays:
            if isinstance(array, self.backend.xp.ndarray) and not self.owns(array):
                self.kept[array.data.mem.ptr] = array

    def on_event(self, event: observe.Event) -> None:
        """Observer of kernels (see base/observe.py): keep their inputs alive."""
        self.keep(event.inputs)

    def constant(self, values: np.ndarray[Any, Any]) -> Array:
        """An array with these values at every launch, which the step may change.

        They are copied to the device on a stream that records nothing. Where the step, or who holds the array after it,
        may change them, each launch copies them once more (see `end`).
        """
        array = self._brought(values)
        if not array.nbytes:
            return array
        xp, constant, memory = self.backend.xp, Constant(array), array.data.mem
        cuda = xp.cuda
        self.constants[constant.start] = array, values
        self.work.addresses[constant.start] = ref(constant)
        held = cuda.UnownedMemory(memory.ptr, memory.size, constant, memory.device_id)
        pointer = cuda.MemoryPointer(held, array.data.ptr - memory.ptr)
        made: Array = xp.ndarray(array.shape, array.dtype, pointer, array.strides)
        return made

    def _brought(self, values: np.ndarray[Any, Any]) -> Array:
        # Values of the host, copied to the device beside the capture.
        beside = self.backend.xp.cuda.Stream(non_blocking=True)
        with beside:
            array = self.backend.asarray(values)
        beside.synchronize()
        return array

    def writes(self, array: Array) -> None:
        """The step changes `array`, or hands it to code that may."""
        there = isinstance(array, self.backend.xp.ndarray) and array.nbytes
        found = self.work.at(array.data.mem.ptr) if there else None
        constant = None if found is None else found()
        if isinstance(constant, Constant):
            self._restore(constant.start)

    def end(self) -> None:
        """The capture is complete: keep the values of the constants that the step has left with others."""
        for start in self.constants:
            if self.work.addresses[start]() is not None:
                self._restore(start)

    def _restore(self, start: int) -> None:
        array, values = self.constants[start]
        if all(array is not held for held, _ in self.restored):
            self.restored.append((array, self._brought(values)))

    def address(self, array: Array) -> Array:
        """`array` as an address that keeps no memory, if the recording owns it; others stay as they are."""
        if not array.nbytes or not self.owns(array):
            return array
        cuda, memory = self.backend.xp.cuda, array.data.mem
        unowned = cuda.UnownedMemory(memory.ptr, memory.size, None, memory.device_id)
        pointer = cuda.MemoryPointer(unowned, array.data.ptr - memory.ptr)
        return self.backend.xp.ndarray(array.shape, array.dtype, pointer, array.strides)

    def begin_at(self, seed: int, call: int) -> None:
        """Let the next launch draw its random numbers from `call` on, and begin with the constants as they were."""
        for place, number in enumerate((seed, call)):
            if self._drawn[place] != number:
                self.draws[place : place + 1].fill(np.uint64(number))
                self._drawn[place] = number
        for array, values in self.restored:
            self.backend.copy(array, values)


class Graph:
    """One step: run eagerly first, captured once, then launched; captured again after `drop`.

    footprint: the address ranges of its temporaries, None while nothing is captured.
    """

    def __init__(self, backend: CUDA):
        self.backend, self.xp, self.pool = backend, backend.xp, backend.graph_pool()
        self.recording: Recording | None = None
        self.footprint: Footprint | None = None
        self.small = self.xp.cuda.MemoryPool()  # its allocations that are not shared (see graphpool.SMALL)
        self._graph: Any = None
        self._drops = 0
        self.pool.graphs.add(self)
        self._free_default_pool()

    def _free_default_pool(self) -> None:
        # The recorded step and its warm-up do not allocate there, and blocks that it keeps are lost to them.
        with self.backend.here():
            self.xp.get_default_memory_pool().free_all_blocks()

    @property
    def stream(self) -> Any:
        """The stream of the recording and its warm-up."""
        return self.pool.stream

    def drop(self) -> None:
        """Discard the graph; the memory of its temporaries is free."""
        if self.footprint is None:
            return
        self._graph = self.recording = self.footprint = None
        self._drops += 1
        if self._drops == MAX_DROPS:
            self.pool.graphs.discard(self)
            self.pool = self.backend.new_graph_pool()
            self.pool.graphs.add(self)

    @contextmanager
    def _in_the_driver(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            found = self.backend.out_of_memory_error(error)
            if found is error:
                raise
            raise found from None

    def record(self, work: Callable[[], Any], seed: int, call: int) -> Any:
        """Capture `work` and return its result, whose memory each launch fills."""
        recording = Recording(self.backend, seed, call)
        self._free_default_pool()
        with self.pool.use(self) as recording.work:
            self.stream.synchronize()
            out = self._captured(work, recording)
            recording.end()
        self.recording, self.footprint = recording, Footprint(recording.work.ranges)
        return out

    def _captured(self, work: Callable[[], Any], recording: Recording) -> Any:
        gc.collect()
        collects = gc.isenabled()
        gc.disable()
        self.stream.begin_capture()
        self.backend.recording, self.pool.recording = recording, True
        try:
            with observe.observing(recording.on_event):
                out = work()
            recording.later = [([recording.address(a) for a in arrays], then) for arrays, then in recording.later]
        except BaseException:
            with suppress(Exception):  # a recording that failed ends with an error of its own
                self.stream.end_capture()
            raise
        else:
            with self._in_the_driver():
                self._graph = self.stream.end_capture()
        finally:
            self.backend.recording, self.pool.recording = None, False
            if collects:
                gc.enable()
        return out

    def launch(self, seed: int, call: int) -> None:
        """Launch the graph, with random draws numbered from `call` on. Errors of earlier work are `raise_earlier`'s."""
        assert self.recording is not None
        with self.pool.use(), ExitStack() as around:
            self.recording.begin_at(seed, call)
            for context in self.recording.around:
                around.enter_context(context())
            with self._in_the_driver():
                self._graph.launch(self.stream)
        for arrays, then in self.recording.later:
            self.backend.queue_copies(arrays, then)

    def raise_earlier(self) -> None:
        """Raise what a check of an earlier step has found by now, before anything of this one is done."""
        self.backend.call_ready()
