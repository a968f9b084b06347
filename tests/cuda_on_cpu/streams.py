"""Streams, events, graphs and devices of the emulated CuPy: who comes after whom, and what a capture forbids.

The emulation does everything at once, in the order in which the host asks. A card does not: streams run side by side,
and the host is ahead of them all. So each stream has a vector clock, which events carry from one to another, and
`races()` collects accesses to the same bytes that nothing orders, one of which writes. Copies to the host arrive when
the host has waited for them, and not before; memory that a copy still reads must not change until then.

While a stream captures, what would run is kept, by address: a launch of the graph does it to whatever is there. Each
launch asks whether the addresses still belong to whom they belonged (memory.Range). What CUDA forbids in a capture is
an error here, with CUDA's name, and spoils the capture.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import memory
from .memory import CUDARuntimeError, Range

COUNT = 1  # devices of the machine; `devices` sets it for a while
Clock = dict[int, int]  # by a stream's number: how much of its work came before
_numbers = itertools.count(1)
_host: Clock = {}  # what the host knows to be done
_hosts_lock = threading.RLock()  # of what several threads of the host learn
_by_number: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_captures: list[Capture] = []  # under way
_watching: Watch | None = None


class Access(NamedTuple):
    """Bytes that an action reads or writes."""

    start: int
    stop: int
    writes: bool


class Action(NamedTuple):
    """Something captured: what is done at a launch, and the bytes that it needs."""

    run: Callable[[], Any]
    ranges: list[Range]
    accesses: list[Access]


class Capture:
    """What a stream has been asked for since its capture began. first: the serial of memory that is its own."""

    def __init__(self, origin: Stream):
        self.origin, self.streams = origin, {origin}
        self.actions: list[Action] = []
        self.first, self.spoilt = next(memory._serials), False


class Stream:
    """A queue of one device. ptr: 0 for the legacy default stream."""

    def __init__(self, null: bool = False, non_blocking: bool = False, device: int | None = None):
        self.device_id = memory.current.device if device is None else device
        self.non_blocking, self.number = non_blocking, next(_numbers)
        self.ptr = 0 if null else self.number
        _by_number[self.number] = self
        self.clock: Clock = {self.number: 0}
        self.capture: Capture | None = None
        self.arriving: list[tuple[int, Callable[[], None]]] = []  # copies that the host has not waited for

    def __enter__(self) -> Stream:
        if self.device_id != memory.current.device:
            here, there = memory.current.device, self.device_id
            line = f"The device that the stream is created on ({there}) does not match with the current device ({here})"
            raise RuntimeError(line)
        _thread.stacks.setdefault(self.device_id, []).append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _thread.stacks[self.device_id].pop()

    def tick(self) -> int:
        self.clock[self.number] += 1
        return self.clock[self.number]

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        if self.capture is not None and event.capture is None and event.recorded:
            spoil(self.capture, "cudaErrorStreamCaptureIsolation", "a capture waits for an event from outside of it")
        if event.capture is not None and event.capture in _captures:
            if self.ptr == 0:
                spoil(event.capture, "cudaErrorStreamCaptureImplicit", "the legacy stream waits for a captured event")
            if self.capture is not None and self.capture is not event.capture:
                spoil(self.capture, "cudaErrorStreamCaptureMerge", "a capture waits for another one")
            self.capture = event.capture
            event.capture.streams.add(self)
        _join(self.clock, event.clock)

    def synchronize(self) -> None:
        self._refuse("waiting for a stream that captures")
        waits[0] += 1
        reach(self.clock)

    @property
    def done(self) -> bool:
        self._refuse("asking a stream that captures")
        reach(self.clock)
        return True

    def _refuse(self, what: str) -> None:
        contexts.add(memory.current.device)
        if self.capture is not None:
            spoil(self.capture, "cudaErrorStreamCaptureUnsupported", what)

    def is_capturing(self) -> bool:
        return self.capture is not None

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr == 0:
            raise CUDARuntimeError(900, "cudaErrorStreamCaptureUnsupported", "the legacy stream cannot be captured")
        if self.capture is not None:
            raise CUDARuntimeError(10, "cudaErrorIllegalState", "the stream captures already")
        self.capture = Capture(self)
        _captures.append(self.capture)

    def end_capture(self) -> Graph:
        found = self.capture
        if found is None:
            raise CUDARuntimeError(10, "cudaErrorIllegalState", "the stream captures nothing")
        if found.origin is not self:
            spoil(found, "cudaErrorStreamCaptureUnmatched", "the capture began on another stream")
        _captures.remove(found)
        for stream in found.streams:
            stream.capture = None
        if found.spoilt:
            raise CUDARuntimeError(901, "cudaErrorStreamCaptureInvalidated", "an earlier call spoilt the capture")
        left = [s.number for s in found.streams if self.clock.get(s.number, 0) < s.clock[s.number]]
        if left:
            raise CUDARuntimeError(904, "cudaErrorStreamCaptureUnjoined", f"streams {left} were not waited for")
        return Graph(found)


class Event:
    """A place in a stream. done: not before an event was asked in vain, since the host is ahead of the device."""

    _newest = itertools.count(1)
    _caught_up = 0  # the device has done what was recorded up to there

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False):
        self.recorded, self.at_place, self.clock = False, 0, {}
        self.device_id = memory.current.device
        self.capture: Capture | None = None

    def record(self, stream: Stream | None = None) -> None:
        contexts.add(memory.current.device)
        stream = stream or current_stream()
        if stream.device_id != self.device_id:
            raise CUDARuntimeError(400, "cudaErrorInvalidResourceHandle", "an event of another device than the stream")
        stream.tick()
        self.recorded, self.clock, self.capture = True, dict(stream.clock), stream.capture
        self.at_place = next(Event._newest)
        self.at = time.perf_counter()

    @property
    def done(self) -> bool:
        self._refuse("asking")
        if self.at_place <= Event._caught_up:
            reach(self.clock)
            return True
        Event._caught_up = next(Event._newest)
        return False

    def synchronize(self) -> None:
        self._refuse("waiting for")
        waits[0] += 1
        reach(self.clock)

    def _refuse(self, what: str) -> None:
        contexts.add(memory.current.device)  # CUDA asks on the current device, whichever the event is of
        if self.capture is not None:
            if self.capture in _captures:
                self.capture.spoilt = True
            raise CUDARuntimeError(907, "cudaErrorCapturedEvent", f"{what} an event that was captured")


def get_elapsed_time(first: Event, second: Event) -> float:
    for event in (first, second):
        event._refuse("timing")
    return (second.at - first.at) * 1000


class Graph:
    """What a capture kept, to be launched."""

    def __init__(self, capture: Capture):
        self.actions, self.first, self.last = capture.actions, capture.first, next(memory._serials)

    def launch(self, stream: Stream | None = None) -> None:
        self.check()
        stream = stream or current_stream()
        with stream, np.errstate(all="ignore"):
            for action in self.actions:
                if _watching is not None:
                    stream.tick()
                    touch(stream, action.accesses)
                action.run()

    def upload(self, stream: Stream | None = None) -> None:
        self.check()

    def check(self) -> None:
        """Raises RuntimeError where a launch would use memory that is not what it was when it was captured."""
        for number, action in enumerate(self.actions):
            for each in action.ranges:
                reason = each.stale_reason(self.first, self.last)
                if reason:
                    raise StaleMemoryError(f"launch {number} of the graph uses {reason}")


class StaleMemoryError(RuntimeError):
    """A graph uses memory that it must not: on a card silently wrong numbers, or an illegal access."""


def spoil(capture: Capture, name: str, text: str) -> None:
    """Raise what CUDA returns for a call that a capture does not allow, and spoil the capture."""
    capture.spoilt = True
    raise CUDARuntimeError(900, name, text)


# the current stream and device


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stacks: dict[int, list[Stream]] = {}
        self.before: list[int] = []  # devices that blocks come back to


_thread = _Thread()
_legacy: dict[int, Stream] = {}


def current_stream(device: int | None = None) -> Stream:
    number = memory.current.device if device is None else device
    stack = _thread.stacks.get(number)
    if stack:
        return stack[-1]
    if number not in _legacy:
        _legacy[number] = Stream(null=True, device=number)
    return _legacy[number]


memory.current_stream = lambda: current_stream().ptr
contexts: set[int] = set()  # the devices that were made current, or used: each then holds a context in its memory
full: set[int] = set()  # the devices that have no memory left for a context
waits = [0]  # how often the host has waited for a device


class Device:
    """One device of the machine; a context in which it is the current one."""

    compute_capability = "90"

    def __init__(self, id: int | None = None):
        self.id = memory.current.device if id is None else int(id)

    @property
    def mem_info(self) -> tuple[int, int]:
        """Bytes free, and all."""
        return memory.DEVICE_BYTES - memory.allocated(self.id), memory.DEVICE_BYTES

    def use(self) -> None:
        if not 0 <= self.id < COUNT:
            raise CUDARuntimeError(101, "cudaErrorInvalidDevice", "invalid device ordinal")
        if self.id in full:
            raise CUDARuntimeError(memory.NO_MEMORY, "cudaErrorMemoryAllocation", "out of memory")
        memory.current.device = self.id
        contexts.add(self.id)

    def __enter__(self) -> Device:
        _thread.before.append(memory.current.device)
        self.use()
        return self

    def __exit__(self, *error: Any) -> None:
        Device(_thread.before.pop()).use()

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def __int__(self) -> int:
        return self.id

    def synchronize(self) -> None:
        for capture in _captures:
            spoil(capture, "cudaErrorStreamCaptureUnsupported", "waiting for a device whose streams capture")
        waits[0] += 1
        for stream in (*_legacy.values(), *_all_streams()):
            if stream.device_id == self.id:
                reach(stream.clock)


@contextmanager
def devices(count: int) -> Iterator[None]:
    """Within the block the machine has so many devices."""
    global COUNT
    before, COUNT = COUNT, count
    contexts.clear()
    try:
        yield
    finally:
        COUNT, memory.current.device = before, 0
        full.clear()


# work


tolerant = False  # whether a test's own work on arrays needs no device made current for it
_HERE, _ANYWHERE = str(Path(__file__).parent), nullcontext()
_TESTS = str(Path(__file__).parents[1])


def of_a_test(arrays: Sequence[Any]) -> Any:
    """The context for work on arrays of another device that a test asks for itself: there it is done on theirs."""
    if not tolerant or not arrays or arrays[0].device_id == memory.current.device:
        return _ANYWHERE
    frame: Any = sys._getframe(2)
    while frame.f_code.co_filename.startswith(_HERE) or f"{os.sep}numpy{os.sep}" in frame.f_code.co_filename:
        frame = frame.f_back
    ours = frame.f_code.co_filename.startswith(_TESTS)
    return Device(arrays[0].device_id) if ours else _ANYWHERE


def capturing() -> Capture | None:
    """The capture of the current stream."""
    return current_stream().capture


def asked_of(stream: Stream, run: Callable[[], Any], accesses: Sequence[Access]) -> Any:
    """Do `run`, which accesses those bytes, on a stream: now, or at each launch of what it captures."""
    stream.tick()
    if stream.capture is not None:
        ranges = [Range(start, stop, memory.serial_of(start)) for start, stop, _ in accesses]
        stream.capture.actions.append(Action(run, ranges, accesses))
        return None
    touch(stream, accesses)
    return run()


def perform(run: Callable[[], Any], reads: Sequence[Any] = (), writes: Sequence[Any] = ()) -> Any:
    """Do `run` on the current stream: now, or at each launch of what is being captured.

    reads, writes: device arrays that it uses. Raises ValueError, in CuPy's words, for those of another device.
    """
    stream = current_stream()
    for array in (*reads, *writes):
        if array._numpy.nbytes and array._memory.segment is None:
            raise StaleMemoryError("an array whose pool is gone, and its memory with it")
        if array.device_id != stream.device_id and array._numpy.size:
            there, here = array.device_id, stream.device_id
            text = f"The device where the array resides ({there}) is different from the current device ({here})."
            raise ValueError(f"{text} Unfortunately peer access is unavailable.")
    if stream.capture is None and _watching is None:
        return run()
    return asked_of(stream, run, [*_accesses(reads, False), *_accesses(writes, True)])


def extent(held: Any) -> tuple[int, int]:
    """The first byte of an array of the host's, and the one behind the last."""
    start = held.__array_interface__["data"][0]
    steps = [(n - 1) * step for n, step in zip(held.shape, held.strides, strict=True)]
    return start + sum(s for s in steps if s < 0), start + sum(s for s in steps if s > 0) + held.itemsize


def _accesses(arrays: Sequence[Any], writes: bool) -> list[Access]:
    return [Access(*extent(array._numpy), writes) for array in arrays if array._numpy.size]


def _join(clock: Clock, other: Clock) -> None:
    for number, tick in other.items():
        if clock.get(number, 0) < tick:
            clock[number] = tick


def reach(clock: Clock) -> None:
    """The host has waited for what `clock` covers: copies arrive."""
    with _hosts_lock:
        _join(_host, clock)
        for stream in _all_streams():
            due = [then for tick, then in stream.arriving if tick <= _host.get(stream.number, 0)]
            stream.arriving = [pair for pair in stream.arriving if pair[0] > _host.get(stream.number, 0)]
            for then in due:
                then()


_with_copies: dict[int, Stream] = {}


def _all_streams() -> list[Stream]:
    return list(_with_copies.values())


def arrives(stream: Stream, then: Callable[[], None]) -> None:
    """Have `then` called once the host has waited for what was asked of `stream` by now."""
    with _hosts_lock:
        _with_copies[stream.number] = stream
        stream.arriving.append((stream.tick(), then))


def numbered(ptr: int) -> Stream:
    """The stream at an address."""
    return _by_number[ptr] if ptr else current_stream()


# races


class Watch:
    """Who has accessed which bytes since it began, and the pairs of accesses that nothing orders."""

    def __init__(self) -> None:
        self.found: list[str] = []
        # By the segment: accesses with their streams' numbers and ticks.
        self._seen: dict[int, list[tuple[Access, int, int]]] = {}

    def add(self, stream: Stream, access: Access) -> None:
        segment = memory.segment_of(access.start)
        key, kept, tick = 0 if segment is None else segment.ptr, [], stream.clock[stream.number]
        for entry in self._seen.get(key, ()):
            other, number, at = entry
            meets = other.start < access.stop and access.start < other.stop
            ordered = stream.clock.get(number, 0) >= at
            if meets and not ordered and (access.writes or other.writes):
                self.found.append(f"streams {number} and {stream.number} at bytes {access.start:#x}")
            covered = access.start <= other.start and other.stop <= access.stop
            if not (covered and ordered and access.writes >= other.writes):
                kept.append(entry)
        self._seen[key] = [*kept, (access, stream.number, tick)]


def touch(stream: Stream, accesses: Sequence[Access]) -> None:
    """Note what an action on `stream` accesses, where somebody watches."""
    if _watching is not None:
        for access in accesses:
            _watching.add(stream, access)


def written(arrays: Sequence[Any]) -> None:
    """Note that the newest action on the current stream has written `arrays`."""
    if _watching is not None:
        touch(current_stream(), _accesses(arrays, True))


@contextmanager
def races() -> Iterator[list[str]]:
    """Within the block accesses of streams to the same bytes are watched; those that nothing orders are collected."""
    global _watching
    _watching = Watch()
    try:
        yield _watching.found
    finally:
        _watching = None
