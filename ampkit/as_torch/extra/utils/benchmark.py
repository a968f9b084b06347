"""`torch.utils.benchmark`: times of statements, and tables that compare them."""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np

from .... import get_num_threads, set_num_threads
from ....base.errors import ArgumentError
from ...refused import refused

__all__ = [
    "CallgrindStats", "Compare", "FunctionCounts", "Fuzzer", "Language", "Measurement", "TaskSpec", "Timer", "timer",
]  # fmt: skip

timer = timeit.default_timer
CallgrindStats, FunctionCounts, Fuzzer, Language = (
    refused(f"torch.utils.benchmark.{name}", "Timer measures Python statements")
    for name in ("CallgrindStats", "FunctionCounts", "Fuzzer", "Language")
)
_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


@dataclass(frozen=True)
class TaskSpec:
    """What a Timer measures: the statement and the labels of its place in a table."""

    stmt: str
    setup: str
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    @property
    def title(self) -> str:
        """The label, else the statement."""
        return ": ".join(text for text in (self.label or self.stmt, self.sub_label) if text)


@dataclass(eq=False)
class Measurement:
    """Seconds of a statement: those of each repetition of `number_per_run` runs."""

    number_per_run: int
    raw_times: list[float]
    task_spec: TaskSpec
    metadata: dict[Any, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["task_spec"], name)

    @property
    def times(self) -> list[float]:
        """Seconds of one run, by repetition."""
        return [seconds / self.number_per_run for seconds in self.raw_times]

    @property
    def median(self) -> float:
        """The median of `times`."""
        return float(median(self.times))

    @property
    def mean(self) -> float:
        """The mean of `times`."""
        return fmean(self.times)

    @property
    def iqr(self) -> float:
        """The distance between the quartiles of `times`."""
        return float(np.subtract(*np.percentile(self.times, [75, 25])))

    @property
    def as_row_name(self) -> str:
        """The name of its row in a table."""
        return self.sub_label or self.stmt or "[Unknown]"

    def meets_confidence(self, threshold: float = 0.1) -> bool:
        """Whether the quartiles are apart by less than this share of the median."""
        return self.iqr / self.median < threshold

    @staticmethod
    def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
        """One measurement of each task, with the times of all of its own."""
        groups: dict[TaskSpec, list[float]] = {}
        for measurement in measurements:
            groups.setdefault(measurement.task_spec, []).extend(measurement.times)
        return [Measurement(1, times, task) for task, times in groups.items()]

    def __repr__(self) -> str:
        unit, scale = _unit(self.median)
        count = f"{len(self.raw_times)} measurements, {self.number_per_run} runs per measurement"
        lines = [f"{type(self).__name__}: {self.title}", f"  Median: {self.median / scale:.2f} {unit}"]
        lines.append(f"  IQR:    {self.iqr / scale:.2f} {unit}")
        return "\n".join([*lines, f"  {count}, {self.num_threads} thread{'s' * (self.num_threads > 1)}"])


class Timer:
    """Measures a statement of Python, on `num_threads` threads.

    globals: names that `stmt` and `setup` see. Raises ArgumentError for another language.
    """

    _timer_cls = timeit.Timer

    def __init__(
        self,
        stmt: str = "pass",
        setup: str = "pass",
        global_setup: str = "",
        timer: Callable[[], float] = timer,
        globals: dict[str, Any] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
        language: Any = "python",
    ):
        if str(language).lower() not in ("python", "py"):
            raise ArgumentError("Timer", "language 'python'", repr(language))
        stmt = stmt if callable(stmt) else "\n".join(line.rstrip() for line in str(stmt).strip().splitlines())
        self._task_spec = TaskSpec(str(stmt), setup, global_setup, label, sub_label, description, env, num_threads)
        self._timer = self._timer_cls(stmt, setup, timer, dict(globals or {}))

    def timeit(self, number: int = 1_000_000) -> Measurement:
        """One measurement of `number` runs, after a shorter one that warms up."""
        with _threads(self._task_spec.num_threads):
            self._timer.timeit(number=max(number // 100, 2))
            return Measurement(number, [self._timer.timeit(number=number)], self._task_spec)

    def repeat(self, repeat: int = -1, number: int = -1) -> Any:
        raise NotImplementedError("Timer.repeat: use timeit, blocked_autorange or adaptive_autorange")

    def autorange(self, callback: Any = None) -> Any:
        raise NotImplementedError("Timer.autorange: use blocked_autorange")

    def blocked_autorange(self, callback: Any = None, min_run_time: float = 0.2) -> Measurement:
        """Repetitions of as many runs as hide the cost of the clock, for `min_run_time` seconds in all.

        callback: called with the runs and the seconds of each repetition.
        """
        with _threads(self._task_spec.num_threads):
            return self._repeated(min_run_time, callback, lambda found: sum(found.raw_times) >= min_run_time)

    def adaptive_autorange(
        self, threshold: float = 0.1, *, min_run_time: float = 0.01, max_run_time: float = 10.0, callback: Any = None
    ) -> Measurement:
        """`blocked_autorange` until the quartiles are apart by less than `threshold` of the median, or time is up."""

        def is_enough(found: Measurement) -> bool:
            seconds, count = sum(found.raw_times), len(found.raw_times)
            sure = seconds >= min_run_time and count > 3 and found.meets_confidence(threshold)
            return sure or seconds >= max_run_time

        with _threads(self._task_spec.num_threads):
            return self._repeated(min_run_time, callback, is_enough)

    def collect_callgrind(self, *args: Any, **kwargs: Any) -> Any:
        """Raises NotImplementedError: instructions are not counted."""
        raise NotImplementedError("Timer.collect_callgrind: counts instructions of PyTorch; use ampkit.profile()")

    def _repeated(self, min_run_time: float, callback: Any, is_enough: Callable[[Measurement], bool]) -> Measurement:
        number = self._runs(min_run_time)
        found = Measurement(number, [], self._task_spec)
        while not is_enough(found):
            seconds = self._timer.timeit(number=number)
            if callback is not None:
                callback(number, seconds)
            found = Measurement(number, [*found.raw_times, seconds], self._task_spec)
        return found

    def _runs(self, min_run_time: float) -> int:
        # As many runs as take a thousandth of the time, each repetition a hundred times what the clock costs.
        overhead = median(self._timer_cls("pass").timeit(number=1) for _ in range(5))
        number = 1
        while True:
            seconds = self._timer.timeit(number=number)
            if (seconds > 1e-4 and overhead / seconds <= 1e-4 and seconds >= min_run_time / 1000) or seconds > 1.0:
                return number
            number *= 10


class Compare:
    """A table of measurements: a row of each sub_label and a column of each description."""

    def __init__(self, results: Iterable[Measurement]):
        self._results: list[Measurement] = []
        self.extend_results(results)

    def extend_results(self, results: Iterable[Measurement]) -> None:
        """Add measurements. Raises ValueError for other objects."""
        for result in results:
            if not isinstance(result, Measurement):
                raise ArgumentError("Compare", "Measurements", type(result).__name__)
            self._results.append(result)

    def trim_significant_figures(self) -> None:
        """Leave the numbers as they are: tables have one digit behind the point."""

    def colorize(self, rowwise: bool = False) -> None:
        """Leave the table without colors."""

    highlight_warnings = trim_significant_figures

    def print(self) -> None:
        """Print the tables, one of each label."""
        sys.stdout.write(f"{self}\n")

    def __str__(self) -> str:
        merged = Measurement.merge(self._results)
        labels = dict.fromkeys(result.task_spec.label for result in merged)
        return "\n".join(_table(str(label), [r for r in merged if r.task_spec.label == label]) for label in labels)


def _table(label: str, results: Sequence[Measurement]) -> str:
    unit, scale = _unit(min(result.median for result in results))
    columns = list(dict.fromkeys(str(result.task_spec.description) for result in results))
    rows: dict[Any, dict[str, str]] = {}
    for result in results:
        task = replace(result.task_spec, description=None)
        key = (task.num_threads, task.env, result.as_row_name)
        rows.setdefault(key, {})[str(result.task_spec.description)] = f"{result.median / scale:.1f}"
    names = {key: " ".join(filter(None, (key[1], key[2], f"({key[0]} threads)" * (key[0] > 1)))) for key in rows}
    widths = [
        max(map(len, names.values())),
        *(max(len(c), *(len(r.get(c, "")) for r in rows.values())) for c in columns),
    ]
    lines = [[" " * widths[0], *(c.rjust(w) for c, w in zip(columns, widths[1:], strict=True))]]
    for key, row in rows.items():
        cells = (row.get(c, "").rjust(w) for c, w in zip(columns, widths[1:], strict=True))
        lines.append([names[key].ljust(widths[0]), *cells])
    return "\n".join([f"[ {label} ]", *("  |  ".join(line) for line in lines), f"Times are in {unit}."])


def _unit(seconds: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in _UNITS if seconds >= scale), _UNITS[-1])


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = get_num_threads()
    set_num_threads(count)
    try:
        yield
    finally:
        set_num_threads(before)
