"""Bytes that kernels move: what their threads read and write of the arrays that a launch is given.

    needed = Entries()                    # a stand-in for the backend's kernels, which runs none and notes their names
    counted = Counted(needed.found)       # runs them, compiled with a call before each access
    counted.launches                      # Launch(source, name, blocks, threads, dynamic, moved)

An array of at most CACHED bytes, such as the weight of all rows, is read from memory once, and from a cache then: of it
each byte counts once. Of a larger one each access counts, though a GPU may find some of it in a cache, too.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.cuda import nvrtc

from . import emulator, launch_limits

CACHED = 36 << 10  # bytes: less than a multiprocessor's cache, more than a row of float32 that registers hold
FLAGS = ["-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"]
COUNTERS = (emulator.HERE / "traffic.cpp").read_text()


class Launch(NamedTuple):
    """dynamic: bytes of shared memory; moved: bytes read and written."""

    source: str
    name: str
    blocks: int
    threads: int
    dynamic: int
    moved: int


class _Range(ctypes.Structure):
    _fields_ = (
        ("low", ctypes.c_void_p),
        ("high", ctypes.c_void_p),
        ("seen", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    )


class Entries:
    """Kernels that do not run. found: the names that were asked for, by file."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, None]] = {}

    def entry(self, source: str, name: str) -> Callable[..., None]:
        self.found.setdefault(source, {})[name] = None
        return lambda grid, block, args, shared_mem=0: None


class Counted:
    """Kernels whose accesses are counted. launches: those since it was last emptied."""

    def __init__(self, names: dict[str, dict[str, None]]):
        self.launches: list[Launch] = []
        with emulator.compiled_with(FLAGS), ThreadPoolExecutor(2) as pool:
            self._entries = dict(zip(names, pool.map(_compiled, names.items()), strict=True))

    def entry(self, source: str, name: str) -> Callable[..., None]:
        function = emulator.Function(name, *self._entries[source][name], f'#include "{source}.cu"\n')
        return lambda grid, block, args, shared_mem=0: self.run(source, function, grid, block, args, shared_mem)

    def run(self, source: str, function: Any, grid: Any, block: Any, args: Any, dynamic: int = 0) -> None:
        """Run `function`, compiled with COUNTERS and FLAGS, and note the launch."""
        arrays = [bounds(arg) for arg in args if hasattr(arg, "dtype") and emulator.address(arg)]
        seen = [np.zeros(high - low, np.uint8) if high - low <= CACHED else None for low, high in arrays]
        given = [(*b, None if s is None else s.ctypes.data) for b, s in zip(arrays, seen, strict=True)]
        ranges = (_Range * len(arrays))(*given)
        function.lib.traffic_watch(ranges, len(arrays))
        function.max_dynamic_shared_size_bytes = max(launch_limits.BLOCK_SHARED, dynamic)
        function(grid, block, args, shared_mem=dynamic)
        function.lib.traffic_watch(None, 0)
        moved = sum(r.bytes if s is None else _once(s) for r, s in zip(ranges, seen, strict=True))
        self.launches.append(Launch(source, function.name, math.prod(grid), math.prod(block), dynamic, moved))


def _once(seen: np.ndarray[Any, Any]) -> int:
    return int(np.sum(seen & 1) + np.sum(seen >> 1))


def bounds(array: Any) -> tuple[int, int]:
    """Where the elements of `array` begin and end."""
    if not hasattr(array, "ctypes"):
        array = array._numpy
    return np.lib.array_utils.byte_bounds(array)


def _compiled(wanted: tuple[str, dict[str, None]]) -> dict[str, Any]:
    source, names = wanted
    code = f'{COUNTERS}#include "{source}.cu"\n'
    return emulator.library(code, tuple(map(str, nvrtc.FOLDERS)), tuple(names), None, None)
