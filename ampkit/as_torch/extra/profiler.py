"""`torch.profiler` and `torch.autograd.profiler`, by `ampkit.profile`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ContextDecorator
from enum import Enum
from pathlib import Path
from typing import Any, Self

from ...debug.profiler import profile as _profile


class ProfilerActivity(Enum):
    """What to look at; ampkit times the ops on whichever device they run."""

    CPU = 0
    CUDA = 2


class ProfilerAction(Enum):
    """What a schedule says of a step; ampkit times them all."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


class profile(_profile):
    """`ampkit.profile` with PyTorch's arguments: every step of the block is timed, and `schedule` skips none."""

    def __init__(self, *ignored: Any, on_trace_ready: Callable[[profile], Any] | None = None, **more: Any):
        super().__init__()
        self._then = on_trace_ready

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._then is not None and not any(error):
            self._then(self)

    def step(self) -> None:
        """Does nothing: every step is timed."""

    start, stop = _profile.__enter__, __exit__  # PyTorch's profiler also works without a block

    def key_averages(self, **ignored: Any) -> profile:
        """Itself: it has a row per op and kernel."""
        return self

    def table(self, **ignored: Any) -> str:
        """The rows as text."""
        return str(self)

    def export_chrome_trace(self, path: str) -> None:
        """`save(path)`."""
        self.save(path)


class record_function(ContextDecorator):
    """A context, and a decorator, that changes nothing: rows are of ops and kernels."""

    def __init__(self, name: str, args: str | None = None):
        self.name, self.args = name, args

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is left to do."""


emit_nvtx = record_function


def schedule(**ignored: Any) -> Callable[[int], ProfilerAction]:
    """A schedule that records every step."""
    return lambda step: ProfilerAction.RECORD


def tensorboard_trace_handler(dir_name: str, *ignored: Any, **more: Any) -> Callable[[profile], None]:
    """What saves a trace in a folder, for chrome://tracing."""

    def save(found: profile) -> None:
        Path(dir_name).mkdir(parents=True, exist_ok=True)
        found.save(str(Path(dir_name, "trace.json")))

    return save
