"""New threads on the GPU of the thread that starts them.

CUDA has each thread begin on device 0, and asking for as little as an event there creates a context on that device:
half a gigabyte of its memory, for each process that works on another one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from .. import backends

_P = ParamSpec("_P")
_R = TypeVar("_R")


def on_this_device(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function` for another thread, which makes the GPU that is current here its own first."""
    gpus = backends.gpus
    if gpus is None:
        return function
    index = gpus.current_index()

    @wraps(function)
    def begun(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        gpus.use(index)
        return function(*args, **kwargs)

    return begun
