"""The profiler: how long each op and each kernel took, how many bytes it touched, and what casts cost.

with ampkit.profile() as found:
    train_some_steps()
print(found)                    # a table
found.save("trace.json")        # for chrome://tracing or Perfetto
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import backends
from ..base import observe
from ..base.atomic_file import write
from ..base.errors import StateError
from ..base.html import ShowsItsText


@dataclass(frozen=True)
class Row:
    """All calls of one kernel of one op: how many, seconds of the device (or of the CPU), bytes read and written."""

    name: str
    kernel: str
    calls: int
    seconds: float
    bytes: int


@dataclass
class _Span:
    name: str
    kernel: str
    backend: Any
    start: Any
    end: Any = None
    bytes: int = 0


class profile(ShowsItsText):
    """Within the block every op, cast and update is timed: on a GPU by events in its stream, on a CPU by the clock.

    rows: after the block, per op and kernel, the longest first. seconds: of the block, what lies between ops included.
    A GPU shows the ops as NVTX ranges as well. Launches of a compiled step (see `ampkit.compile`) are one piece of
    work, and show no ops.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.seconds = 0.0
        self._spans: list[_Span] = []
        self._open: list[_Span] = []

    def __enter__(self) -> profile:
        if self in observe.profilers:
            raise StateError("profile", "a block that is not entered yet", "one that is")
        self._spans, self._open = [], []
        self._began = time.perf_counter()
        observe.profilers.append(self)
        observe.observers.append(self.kernel_ended)
        return self

    def __exit__(self, *error: object) -> None:
        observe.profilers.remove(self)
        observe.observers.remove(self.kernel_ended)
        self._times = [(s, s.backend.elapsed_time(s.start, s.end)) for s in self._spans]
        self.seconds = time.perf_counter() - self._began
        self.rows = _rows(self._times)

    def kernel_started(self, name: str, kernel: str, array: Any) -> None:
        """Record the start of a kernel; called by `observe.notify_start`."""
        backend = backends.backend_of(array) if backends.is_array(array) else backends.cpu
        self._open.append(_Span(name, kernel, backend, backend.record_event(name)))

    def kernel_ended(self, event: observe.Event) -> None:
        """Record the end of the kernel that an event is of; an observer (see base/observe.py)."""
        if all(span.name != event.name for span in self._open):  # such as a Function, which is the ops in it
            return
        while self._open:  # spans that an error left open are dropped
            span = self._open.pop()
            if span.name == event.name:
                if event.kernel is not None:  # may be another than the chosen one, that refused
                    span.kernel = event.kernel.name
                span.end, span.bytes = span.backend.record_event(), _bytes((*event.inputs, event.output))
                if span.start is not None and span.end is not None:
                    self._spans.append(span)
                return

    def __str__(self) -> str:
        """A table of the rows, and what share of the block casts took and what lay between ops."""
        total = sum(row.seconds for row in self.rows)
        casts = sum(row.seconds for row in self.rows if row.name == "cast")
        lines = [f"{'op':28}{'kernel':28}{'calls':>8}{'ms':>12}{'share':>8}{'GB/s':>8}"]
        for row in self.rows:
            rate = row.bytes / row.seconds / 1e9 if row.seconds else 0.0
            share = row.seconds / total if total else 0.0
            lines.append(
                f"{row.name:28.27}{row.kernel:28.27}{row.calls:8}{row.seconds * 1e3:12.3f}{share:8.1%}{rate:8.1f}"
            )
        whole = self.seconds or 1.0
        lines += library_refusals(span.backend for span in self._spans)
        lines.append(f"casts: {casts / whole:.1%} of {self.seconds * 1e3:.1f} ms; outside ops: {1 - total / whole:.1%}")
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Write the spans as a Chrome trace (JSON). Raises FileError where that cannot be written."""
        if not self._spans:
            raise StateError("profile.save", "a block that has run ops", "none")
        clock, start = self._spans[0].backend, self._spans[0].start
        events = [
            {
                "name": span.name, "cat": span.kernel or "ampkit", "ph": "X", "pid": 0, "tid": span.backend.name,
                # Clocks of different devices cannot be compared: every other device's spans start at 0.
                "ts": clock.elapsed_time(start, span.start) * 1e6 if span.backend is clock else 0.0,
                "dur": seconds * 1e6, "args": {"kernel": span.kernel, "bytes": span.bytes},
            }
            for span, seconds in self._times
        ]  # fmt: skip
        write("profile.save", path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())


def library_refusals(used: Iterable[Any]) -> list[str]:
    """A line for each call that cublasLt or cuDNN refused on the backends `used`, where references run instead."""
    gpus = {backend for backend in used if hasattr(backend, "refusals")}
    return [f"refused by a library: {line}" for backend in gpus for line in backend.refusals()]


def _rows(times: Iterable[tuple[_Span, float]]) -> list[Row]:
    sums: dict[tuple[str, str], tuple[int, float, int]] = {}
    for span, seconds in times:
        calls, before, size = sums.get((span.name, span.kernel), (0, 0.0, 0))
        sums[span.name, span.kernel] = calls + 1, before + seconds, size + span.bytes
    rows = [Row(name, kernel, *found) for (name, kernel), found in sums.items()]
    return sorted(rows, key=lambda row: -row.seconds)


def _bytes(values: Any) -> int:
    if isinstance(values, (tuple, list)):
        return sum(map(_bytes, values))
    return int(getattr(values, "nbytes", 0))
