"""What a program leaves behind: objects that only Python's collector can free, and objects that nothing frees."""

from __future__ import annotations

import gc
import types
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def left_behind(works: Mapping[Any, Callable[[], Any]]) -> dict[Any, list[str]]:
    """What remains of ampkit's objects and of arrays where functions, which drop what they make, have returned.

    By the name of the function: what is kept by a reference cycle, and what something else still refers to. Each runs
    twice, as caches that one run fills are no leak.
    """

    def all_of_them() -> None:
        for work in works.values():
            work()

    if not _left_by(all_of_them):
        return {}
    found = {name: _left_by(work) for name, work in works.items()}
    return {name: left for name, left in found.items() if left}


def _left_by(work: Callable[[], Any]) -> list[str]:
    work()
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    before = _counts()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        work()
        gc.collect()
        cycles = sorted({_name(item) for item in gc.garbage if _is_ours(item) or _holds_array(item)})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()
        if enabled:
            gc.enable()
    return [f"cycle: {name}" for name in cycles] + [f"kept: {name} {n}" for name, n in (_counts() - before).items()]


def _counts() -> Counter[str]:
    return Counter(_name(item) for item in gc.get_objects() if _is_ours(item))


def _holds_array(item: Any) -> bool:
    # Arrays themselves are not known to the collector.
    return any(issubclass(type(held), np.ndarray) for held in gc.get_referents(item))


def _is_ours(item: Any) -> bool:
    kind: Any = type(item)  # a proxy's __class__ may be anything
    if issubclass(kind, (types.FunctionType, types.MethodType)):
        return str(getattr(item, "__module__", "")).startswith("ampkit")
    if issubclass(kind, types.FrameType):
        return str(item.f_globals.get("__name__", "")).startswith("ampkit")
    return str(getattr(kind, "__module__", "")).startswith("ampkit")


def _name(item: Any) -> str:
    kind: Any = type(item)
    if issubclass(kind, (types.FunctionType, types.MethodType)):
        return f"{kind.__name__} {item.__qualname__}"
    return f"frame of {item.f_code.co_name}" if issubclass(kind, types.FrameType) else str(kind.__qualname__)
