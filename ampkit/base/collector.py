"""Whether the garbage collector is running what it finalizes; and its runs in the middle of `ContextVar.set`.

CPython 3.11 may collect in the middle of `ContextVar.set`. What it finalizes there may set a variable of the same
context, as every op does. CPython then frees the mapping that the outer call still reads, and the process dies. So
every collection begins by taking a reference to the mapping. From 3.12 on, the collector runs between bytecodes only.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from contextvars import Context, copy_context
from threading import get_ident
from typing import Any

# The mappings of the last collections, since one call of `set`, which makes fewer objects than this, may meet several.
_held: deque[Context] = deque(maxlen=32)
thread: int | None = None  # the one in which a collection runs; there is one at a time


def is_collecting() -> bool:
    """Whether this is called by what a garbage collection finalizes, in the middle of any other code."""
    return thread is not None and thread == get_ident()


def follow_collections(phase: str, info: dict[str, Any]) -> None:
    """A callback of gc: note the thread. On 3.11 hold its mapping, and at the end forget what was read meanwhile."""
    global thread
    thread = get_ident() if phase == "start" else None
    if sys.version_info >= (3, 12):
        return
    if phase == "start":
        _held.append(copy_context())
    else:
        _held[-1].run(int)  # entering a context drops what variables have cached, without holding it


gc.callbacks.insert(0, follow_collections)
