"""Context variables and the garbage collector of CPython 3.11, which may run in the middle of `ContextVar.set`.

What it finalizes there, such as a generator suspended inside `with autocast()`, may set a variable of the same context.
CPython then frees the mapping that the outer call still reads, and the process dies. So every collection begins by
taking a reference to the mapping. From 3.12 on, the collector runs between bytecodes only, and nothing is needed.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from contextvars import Context, copy_context
from typing import Any

# The mappings of the last collections, since one call of `set`, which makes fewer objects than this, may meet several.
_held: deque[Context] = deque(maxlen=32)


def hold_context(phase: str, info: dict[str, Any]) -> None:
    """A callback of gc: hold the mapping of this thread's context; at the end forget the values read meanwhile."""
    if phase == "start":
        _held.append(copy_context())
    else:
        _held[-1].run(int)  # entering a context drops what variables have cached, without holding it


if sys.version_info < (3, 12):
    gc.callbacks.insert(0, hold_context)
