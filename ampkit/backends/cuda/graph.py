"""A recorded stretch of work on the GPU: launched again as one CUDA graph, in memory of its own.

Recording executes nothing. Memory that the work takes comes from a private pool, which the graph keeps: what CuPy
would hand to others after the recording, the graph goes on using.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from .device import CUDA, Array


class Recording:
    """What a recording leaves for the host to do at every launch.

    draws: [seed, call] uint64 on the device, where the kernels find the number of the first random draw; first: that
    number while it was recorded. later: the values that `CUDA.later` was to look at, and who wants them.
    """

    def __init__(self, backend: CUDA, seed: int, first: int):
        self.backend, self.seed, self.first = backend, seed, first
        self.draws = backend.zeros((2,), np.dtype(np.uint64))
        self.constants: list[Array] = []
        self.later: list[tuple[list[Array], Callable[..., None]]] = []

    def constant(self, values: np.ndarray[Any, Any]) -> Array:
        """Values that are the same at every launch, copied to the device on a stream that records nothing."""
        beside = self.backend.xp.cuda.Stream(non_blocking=True)
        with beside:
            made = self.backend.asarray(values)
        beside.synchronize()
        self.constants.append(made)
        return made

    def begin_at(self, seed: int, call: int) -> None:
        """Let the next launch draw its random numbers from `call` on."""
        for place, number in enumerate((seed, call)):
            self.draws[place : place + 1].fill(np.uint64(number))


class Graph:
    """One stretch of work: run eagerly in its room first, recorded once, launched from then on."""

    def __init__(self, backend: CUDA):
        self.backend, self.xp = backend, backend.xp
        with backend.here():
            self.pool, self.stream = self.xp.cuda.MemoryPool(), self.xp.cuda.Stream(non_blocking=True)
        self.recording: Recording | None = None
        self._graph: Any = None
        self.blocks: set[int] = set()  # addresses that the pool has given out
        backend.usage.graphs.add(self)

    def _malloc(self, size: int) -> Any:
        with self.backend.usage.aside():
            found = self.pool.malloc(size)
        self.blocks.add(found.ptr)
        return found

    @contextmanager
    def room(self) -> Iterator[None]:
        """Within the block work goes to the graph's stream and memory, in order with the stream outside."""
        with self.backend.here():
            outside = self.xp.cuda.get_current_stream()
            self.stream.wait_event(outside.record())
            try:
                with self.xp.cuda.using_allocator(self._malloc), self.stream:
                    yield
            finally:  # what an error cut short goes on, and the next work must come after it
                outside.wait_event(self.stream.record())

    @contextmanager
    def _in_the_driver(self) -> Iterator[None]:
        # It takes memory for a graph past every pool.
        try:
            yield
        except Exception as error:
            found = self.backend.exhausted(error)
            if found is error:
                raise
            raise found from None

    def record(self, work: Callable[[], Any], seed: int, call: int) -> Any:
        """Record `work`; what it returns, whose memory the launches will fill."""
        with self.room():
            recording = Recording(self.backend, seed, call)
            self.stream.synchronize()
            gc.collect()
            collects = gc.isenabled()
            gc.disable()
            self.stream.begin_capture()
            self.backend.recording = recording
            try:
                out = work()
            except BaseException:
                with suppress(Exception):  # a recording that failed ends with an error of its own
                    self.stream.end_capture()
                raise
            else:
                with self._in_the_driver():
                    self._graph = self.stream.end_capture()
            finally:
                self.backend.recording = None
                if collects:
                    gc.enable()
        self.recording = recording
        return out

    def launch(self, seed: int, call: int) -> None:
        """Do the recorded work, with random draws from `call` on."""
        assert self.recording is not None
        with self.room():
            self.recording.begin_at(seed, call)
            with self._in_the_driver():
                self._graph.launch(self.stream)
        for arrays, then in self.recording.later:
            self.backend.later(arrays, then)
