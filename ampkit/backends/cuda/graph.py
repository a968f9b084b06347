"""A recorded step on the GPU: launched again as one CUDA graph.

Recording executes nothing. The addresses that the work uses must stay its own: its temporaries lie in the GraphPool,
and arrays that were there before are kept by the recording.

Not yet run on a GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from ampkit.base import observe

from .device import CUDA, Array
from .graph_pool import Footprint, Work

MOVES = 3  # how often a recorded step is dropped for what others keep before it gets a pool of its own


class Recording:
    """What a recording leaves for the host to do at every launch, and what it keeps.

    draws: [seed, call] uint64 on the device, where the kernels find the number of the first random draw; first: that
    number while it was recorded. later: the values that `CUDA.later` was to look at, and who wants them. work: what the
    recording allocates. kept: arrays that it uses and did not allocate, whose memory must not go to others.
    """

    def __init__(self, backend: CUDA, seed: int, first: int):
        self.backend, self.seed, self.first = backend, seed, first
        self.draws = backend.zeros((2,), np.dtype(np.uint64))
        self.work = Work()
        self.kept: dict[int, Array] = {}  # by the address of their memory
        self.later: list[tuple[list[Array], Callable[..., None]]] = []

    def made(self, array: Array) -> bool:
        """Whether the recording allocated the memory of `array`; nobody needs that of none."""
        return not array.nbytes or array.data.mem.ptr in self.work.addresses

    def keep(self, arrays: Iterable[Any]) -> None:
        """Keep those of `arrays` that the recording uses and did not allocate."""
        for array in arrays:
            if isinstance(array, self.backend.xp.ndarray) and not self.made(array):
                self.kept[array.data.mem.ptr] = array

    def met(self, name: str, inputs: tuple[Any, ...], output: Any) -> None:
        """An op has run; see base/observe.py."""
        self.keep(inputs)

    def constant(self, values: np.ndarray[Any, Any]) -> Array:
        """Values that are the same at every launch, copied to the device on a stream that records nothing."""
        xp = self.backend.xp
        beside = xp.cuda.Stream(non_blocking=True)
        with beside:
            made = self.backend.asarray(values)
        beside.synchronize()
        self.keep([made])
        return made

    def address(self, array: Array) -> Array:
        """`array` as an address that keeps no memory, if the recording made it; others stay as they are."""
        if not array.nbytes or not self.made(array):
            return array
        cuda, memory = self.backend.xp.cuda, array.data.mem
        unowned = cuda.UnownedMemory(memory.ptr, memory.size, None, memory.device_id)
        pointer = cuda.MemoryPointer(unowned, array.data.ptr - memory.ptr)
        return self.backend.xp.ndarray(array.shape, array.dtype, pointer, array.strides)

    def begin_at(self, seed: int, call: int) -> None:
        """Let the next launch draw its random numbers from `call` on."""
        for place, number in enumerate((seed, call)):
            self.draws[place : place + 1].fill(np.uint64(number))


class Graph:
    """One step: run eagerly first, recorded once, launched from then on; recorded anew after `drop`.

    footprint: where its temporaries lie, None while nothing is recorded.
    """

    def __init__(self, backend: CUDA):
        self.backend, self.xp, self.pool = backend, backend.xp, backend.graph_pool()
        self.recording: Recording | None = None
        self.footprint: Footprint | None = None
        self.small = self.xp.cuda.MemoryPool()  # its allocations that are not shared (see graphpool.SMALL)
        self._graph: Any = None
        self._moves = 0
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
        """Forget what was recorded; the memory of its temporaries is free."""
        if self.footprint is None:
            return
        self._graph = self.recording = self.footprint = None
        self._moves += 1
        if self._moves == MOVES:
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
        """Record `work`; what it returns, whose memory the launches will fill."""
        recording = Recording(self.backend, seed, call)
        self._free_default_pool()
        with self.pool.use(self) as recording.work:
            self.stream.synchronize()
            out = self._captured(work, recording)
        self.recording, self.footprint = recording, Footprint(recording.work.ranges)
        return out

    def _captured(self, work: Callable[[], Any], recording: Recording) -> Any:
        gc.collect()
        collects = gc.isenabled()
        gc.disable()
        self.stream.begin_capture()
        self.backend.recording, self.pool.recording = recording, True
        try:
            with observe.watch(recording.met):
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
        """Do the recorded work, with random draws from `call` on."""
        assert self.recording is not None
        with self.pool.use():
            self.recording.begin_at(seed, call)
            with self._in_the_driver():
                self._graph.launch(self.stream)
        for arrays, then in self.recording.later:
            self.backend.call_when_ready(arrays, then)
