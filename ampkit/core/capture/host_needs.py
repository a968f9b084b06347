"""What a step does on the host that a launch would leave out, found while the step runs before its recording.

A launch runs no Python: it reads no value of the device, brings nothing from the host, and neither prints nor asks for
the time.
"""

from __future__ import annotations

import sys
import time
import warnings
from io import IOBase
from pathlib import Path
from types import FrameType
from typing import Any, Self

from .code_names import LIBRARIES

_EFFECTS: dict[Any, str] = {print: "prints", input: "asks for input", open: "opens a file", warnings.warn: "warns"}
_OF_ARRAYS = ("ampkit.backends", "ampkit.kernels", "ampkit.ops", "ampkit.core.dispatch", "ampkit.distributed.nccl")
_EFFECTS |= {
    getattr(time, name + unit): "reads the time"
    for name in ("time", "monotonic", "perf_counter", "process_time")
    for unit in ("", "_ns")
}


class HostNeeds:
    """Within the block, `reason` becomes the first thing that this thread does on the host, with its line; else "".

    transfers: whether values that are read from the device, or brought to it, count.
    """

    def __init__(self, backend: Any, transfers: bool = True):
        self._backend, self._transfers = backend, transfers
        self._profiles = False
        self.reason = ""

    def __enter__(self) -> Self:
        if self._transfers:
            self._backend.on_transfer = self._transferred
        self._profiles = sys.getprofile() is None  # a profiler of the user goes on
        if self._profiles:
            sys.setprofile(self._event)
        return self

    def __exit__(self, *error: object) -> None:
        if self._profiles:
            sys.setprofile(None)
        self._backend.on_transfer = None

    def _transferred(self, what: str) -> None:
        self._found(what, sys._getframe(1))

    def _event(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or self.reason:
            return
        if getattr(called, "__name__", "") == "write" and isinstance(called.__self__, IOBase):
            what: str | None = "writes to a file"
        else:
            what = None if _is_library(frame) else _EFFECTS.get(called)
        if what is not None and not _is_of_arrays(frame):
            self._found(what, frame)

    def _found(self, what: str, frame: FrameType | None) -> None:
        while frame is not None and _is_library(frame):
            frame = frame.f_back
        if not self.reason:
            place = "" if frame is None else f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            self.reason = f"the step {what}{place}, which a launch does not"


def _is_of_arrays(frame: FrameType | None) -> bool:
    # Of what arrays are made of, which the library's ops call: a kernel that is compiled writes its cache.
    while frame is not None and not _name(frame).startswith("ampkit."):
        frame = frame.f_back
    return frame is not None and _name(frame).startswith(_OF_ARRAYS)


def _is_library(frame: FrameType) -> bool:
    generated = frame.f_code.co_filename == "<string>"  # as what binds the arguments of ops is
    return generated or _name(frame).partition(".")[0] in LIBRARIES


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
