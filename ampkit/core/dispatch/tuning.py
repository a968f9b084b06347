"""Kernels of products and convolutions that a compiled step chooses by time, and the file that keeps the choice.

Kernels of one product add in other orders, so that their bits differ: a choice by time changes those of a step, and
another run might choose otherwise. So each choice is made once, and written to a file before the step returns; a run
that goes on with the file computes the same bits, however long kernels take there.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from ...base import atomic_file
from ...base.errors import FileError

FORMAT = 1
REPEATS = 3  # of which the shortest counts
MARGIN = 0.95  # of the usual kernel's time, which another one has to stay below
SLOW = 4  # times as long as the fastest so far: not timed again

running: list[Choices] = []  # of steps that run, in any thread; one look at this list while there are none


def in_force() -> Choices | None:
    """The choices of the step that runs in this thread."""
    me = threading.get_ident()
    return next((each for each in reversed(running) if me in each.owners), None)


class Choices:
    """Which kernel runs a product or convolution of given shapes, dtypes and layouts, by name.

    path: of the file, which is read if it is there; None: the choice is that of the process. machine: in words, the
    library and what of the computer decides about bits and times. refused: why the file is not used, in one line.
    others: the choices that are not the kernel of other modes.
    """

    def __init__(self, path: Path | None, machine: dict[str, str]):
        self.path, self.machine = path, machine
        self.kernels: dict[str, str] = {}
        self.others: dict[str, str] = {}
        self.refused = ""
        self.owners: list[int] = []  # threads in a block of it
        self._new = False
        if path is not None and path.exists():
            self.refused = self._read(path)
            if self.refused:
                warnings.warn(f"compile: kernels are chosen as in other modes: {self.refused}", RuntimeWarning, 4)

    def __enter__(self) -> Self:
        self.owners.append(threading.get_ident())
        running.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        running.remove(self)
        self.owners.remove(threading.get_ident())
        self._write()

    def pick(self, key: str, usual: Any, candidates: Callable[[], Sequence[Any]], run: Callable[[Any], Any]) -> Any:
        """The kernel for a call: the one that was chosen before, or the fastest now. usual: of other modes."""
        name = self.kernels.get(key)
        if " at 0x" in key:  # what is shown by its address has another key in every process
            return usual
        if name is None and not self.refused:
            found = candidates()
            kernel = usual if len(found) < 2 else fastest(found, usual, run)
            self.kernels[key], self._new = kernel.name, True
        elif name is None or name == usual.name:
            return usual
        else:
            kernel = next((each for each in candidates() if each.name == name), None)
            if kernel is None:
                self.refused = f"{self.path} names a kernel {name} that does not fit {key}"
                warnings.warn(f"compile: kernels are chosen as in other modes: {self.refused}", RuntimeWarning, 2)
                self.kernels = {}
                return usual
        if kernel is not usual:
            self.others[key] = kernel.name
        return kernel

    def _read(self, path: Path) -> str:
        # Why the file is not used; "" if it is.
        try:
            held = json.loads(path.read_text("utf-8"))
            kernels, about, digest = held["kernels"], held["about"], held["digest"]
        except OSError as error:
            return f"{path}: {error.strerror}"
        except (ValueError, KeyError, TypeError):
            return f"{path} is no file of choices, or broke off"
        if digest != _digest(about, kernels):
            return f"the contents of {path} are not those that were written"
        for name, value in self._about().items():
            if about.get(name) != value:
                return f"{path} is of {name} {about.get(name)}, this is {value}"
        self.kernels = kernels
        return ""

    def _write(self) -> None:
        if not self._new or self.path is None or self.refused:
            return
        self._new = False
        about = self._about()
        held = {"about": about, "kernels": self.kernels, "digest": _digest(about, self.kernels)}
        try:
            atomic_file.write("compile", self.path, (json.dumps(held, indent=1) + "\n").encode())
        except FileError as error:
            why = str(error).splitlines()[0].removeprefix("compile: ")
            warnings.warn(f"compile: the choice of kernels is of this process alone: {why}", RuntimeWarning, 3)
            self.path = None

    def _about(self) -> dict[str, str]:
        return {"format": str(FORMAT), **self.machine}


def _digest(about: Any, kernels: Any) -> str:
    return hashlib.sha256(json.dumps([about, kernels], sort_keys=True).encode()).hexdigest()


def fastest(kernels: Sequence[Any], usual: Any, run: Callable[[Any], Any]) -> Any:
    """The kernel that takes the least time to `run`; the usual one unless another is clearly faster."""
    ordered = [usual, *[each for each in kernels if each is not usual]]
    times: dict[Any, float] = {}
    for kernel in ordered:
        run(kernel)  # packs weights, plans
        least = float("inf")
        for _ in range(REPEATS):
            begin = time.perf_counter()
            run(kernel)
            least = min(least, time.perf_counter() - begin)
            if times and least > SLOW * min(times.values()):
                break
        times[kernel] = least
    best = min(times, key=lambda kernel: times[kernel])
    return best if times[best] < MARGIN * times[usual] else usual


def signature(values: Sequence[Any]) -> str:
    """Arrays by dtype, shape and layout, other values as they are shown, as part of a key."""
    return ", ".join(map(_shown, values))


def _shown(value: Any) -> str:
    if hasattr(value, "strides"):
        layout = "" if value.flags.c_contiguous else f" strides {list(value.strides)}"
        return f"{value.dtype.name}{list(value.shape)}{layout}"
    if isinstance(value, (tuple, list)):
        return f"({signature(value)})"
    return value.name if hasattr(value, "itemsize") and hasattr(value, "name") else repr(value)
