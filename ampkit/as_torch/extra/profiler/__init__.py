"""`torch.profiler` and `torch.autograd.profiler`, by `ampkit.profile`."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator
from dataclasses import dataclass
from enum import Enum
from os import getpid
from pathlib import Path
from typing import Any, Self

from ....debug.profiler import profile as _profile
from .schedule import ProfilerAction, always, is_recorded, schedule

__all__ = [
    "EventList", "FunctionEventAvg", "ProfilerAction", "ProfilerActivity", "emit_nvtx", "kineto_available", "profile",
    "record_function", "schedule", "supported_activities", "tensorboard_trace_handler",
]  # fmt: skip


class ProfilerActivity(Enum):
    """What to look at; ampkit times the ops on whichever device they run."""

    CPU = 0
    CUDA = 2


def supported_activities() -> set[ProfilerActivity]:
    """Both."""
    return set(ProfilerActivity)


def kineto_available() -> bool:
    """True: `schedule` and `step` have their effect."""
    return True


@dataclass(frozen=True)
class FunctionEventAvg:
    """All calls of an op, of an op's kernel, or of a `record_function`; times in microseconds."""

    key: str
    count: int
    cpu_time_total: float
    is_user_annotation: bool = False

    @property
    def cpu_time(self) -> float:
        """Of one call, on average."""
        return self.cpu_time_total / self.count

    @property
    def self_cpu_time_total(self) -> float:
        """Without what it calls: an op's own, and 0 of a `record_function`."""
        return 0.0 if self.is_user_annotation else self.cpu_time_total

    name = property(lambda self: self.key)
    cuda_time = device_time = property(lambda self: self.cpu_time)
    cuda_time_total = device_time_total = property(lambda self: self.cpu_time_total)
    self_cuda_time_total = self_device_time_total = property(lambda self: self.self_cpu_time_total)


class EventList(list[FunctionEventAvg]):
    """A row for each op and `record_function`, the longest first; times are those of the device that ran an op."""

    def key_averages(self, **ignored: Any) -> EventList:
        """Itself."""
        return self

    def total_average(self) -> FunctionEventAvg:
        """The sum of the ops."""
        ops = [row for row in self if not row.is_user_annotation]
        return FunctionEventAvg("Total", sum(row.count for row in ops) or 1, self.self_cpu_time_total)

    @property
    def self_cpu_time_total(self) -> float:
        """The time of all ops, in microseconds."""
        return sum(row.self_cpu_time_total for row in self)

    def table(
        self, sort_by: str | None = None, row_limit: int = 100, max_src_column_width: int = 75,
        max_name_column_width: int = 55, max_shapes_column_width: int = 80, header: str | None = None,
        top_level_events_only: bool = False, time_unit: str | None = None,
    ) -> str:  # fmt: skip
        """The rows as text; sort_by: an attribute of a row, the largest first."""
        rows: Iterable[FunctionEventAvg] = self
        if sort_by is not None:
            rows = sorted(self, key=lambda row: -getattr(row, sort_by))
        total = self.self_cpu_time_total or 1.0
        lines = [] if header is None else [header]
        lines.append(f"{'Name':{max_name_column_width}}{'ms':>12}{'share':>8}{'ms a call':>12}{'calls':>8}")
        for row in list(rows)[: row_limit if row_limit >= 0 else None]:
            share = "" if row.is_user_annotation else f"{row.cpu_time_total / total:.1%}"
            name = f"{row.key[: max_name_column_width - 1]:{max_name_column_width}}"
            times = f"{row.cpu_time_total / 1e3:12.3f}{share:>8}{row.cpu_time / 1e3:12.3f}"
            lines.append(f"{name}{times}{row.count:8}")
        return "\n".join([*lines, f"Self CPU time total: {self.self_cpu_time_total / 1e3:.3f}ms"])

    __str__ = table


class profile(_profile):
    """`ampkit.profile` with PyTorch's arguments.

    Without `schedule` all of the block is recorded; with one the steps that it says, which `step()` ends.
    on_trace_ready: called with the profiler when steps were recorded, at RECORD_AND_SAVE and at the end.
    """

    def __init__(
        self, enabled: bool = True, *, activities: Any = None, schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Callable[[Any], Any] | None = None, **ignored: Any,
    ):  # fmt: skip
        super().__init__()
        self.enabled, self.schedule, self.on_trace_ready = enabled, schedule or always, on_trace_ready
        self.step_num, self.current_action = 0, ProfilerAction.NONE
        self._recording = False
        self._ranges: list[tuple[str, float, float]] = []

    def __enter__(self) -> Self:
        self.step_num, self.current_action = 0, self.schedule(0)
        if is_recorded(self.current_action):
            self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        if self._recording:
            self._end(save=not any(error))
        self.current_action = ProfilerAction.NONE

    def start(self) -> None:
        """Begin, as a block does."""
        self.__enter__()

    def stop(self) -> None:
        """End, as a block does."""
        self.__exit__()

    def step(self) -> None:
        """The end of a step: the schedule says what the next one is."""
        before = self.current_action
        self.step_num += 1
        self.current_action = self.schedule(self.step_num)
        saves = before is ProfilerAction.RECORD_AND_SAVE
        if self._recording and (saves or not is_recorded(self.current_action)):
            self._end(save=saves)
        if not self._recording and is_recorded(self.current_action):
            self._begin()

    def _begin(self) -> None:
        if self.enabled:
            self._ranges, self._recording = [], True
            super().__enter__()
            _active.append(self)

    def _end(self, save: bool) -> None:
        super().__exit__()
        _active.remove(self)
        self._recording = False
        if save and self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def key_averages(self, **ignored: Any) -> EventList:
        """A row for each op, and for each `record_function`."""
        found: dict[str, FunctionEventAvg] = {}
        ops = ((row.name, row.calls, row.seconds, False) for row in self.rows)
        ranges = ((name, 1, end - begin, True) for name, begin, end in self._ranges)
        for name, calls, seconds, marked in (*ops, *ranges):
            before = found.get(name, FunctionEventAvg(name, 0, 0.0))
            spent = before.cpu_time_total + seconds * 1e6
            found[name] = FunctionEventAvg(name, before.count + calls, spent, marked)
        return EventList(sorted(found.values(), key=lambda row: -row.cpu_time_total))

    events = key_averages
    function_events = property(key_averages)

    def table(self, *args: Any, **options: Any) -> str:
        """The rows as text."""
        return self.key_averages().table(*args, **options)

    def export_chrome_trace(self, path: str) -> None:
        """Write ops and `record_function`s as a Chrome trace (JSON)."""
        self.save(path)
        trace = json.loads(Path(path).read_text())
        trace["traceEvents"] += [
            {"name": name, "cat": "user_annotation", "ph": "X", "pid": 0, "tid": "record_function",
             "ts": (begin - self._began) * 1e6, "dur": (end - begin) * 1e6}
            for name, begin, end in self._ranges
        ]  # fmt: skip
        Path(path).write_text(json.dumps(trace))


_active: list[profile] = []  # profilers that record


class record_function(ContextDecorator):
    """A context, and a decorator, whose time profilers show under a name."""

    def __init__(self, name: str, args: str | None = None):
        self.name, self.args = name, args
        self._began: list[float] = []

    def __enter__(self) -> Self:
        self._began.append(time.perf_counter())
        return self

    def __exit__(self, *error: object) -> None:
        began = self._began.pop()
        for profiler in _active:
            profiler._ranges.append((self.name, began, time.perf_counter()))


class emit_nvtx(ContextDecorator):
    """A context that changes nothing: `ampkit.profile` shows ops as NVTX ranges."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False):
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is left to do."""


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """What writes each trace into a file of its own in a folder, as TensorBoard's plugin and chrome://tracing read."""
    names = _names(worker_name or f"{socket.gethostname()}_{getpid()}")

    def save(found: profile) -> None:
        Path(dir_name).mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(Path(dir_name, next(names))))

    return save


def _names(worker: str) -> Iterator[str]:
    while True:
        yield f"{worker}.{time.time_ns()}.pt.trace.json"
