"""Silence: overflow and invalid values are results here, not warnings. NumPy warns about them unless told otherwise.

`hush()` turns NumPy's floating-point warnings off in this context and returns what `speak` needs to undo it;
`quietly` is both, as a block or a decorator, where a microsecond does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

try:  # the two halves of np.errstate, at a third of its cost; a recorded op calls them once
    from numpy._core._multiarray_umath import _extobj_contextvar, _make_extobj  # type: ignore

    hush: Callable[[], Any] = partial(_extobj_contextvar.set, _make_extobj(all="ignore"))
    speak: Callable[[Any], None] = _extobj_contextvar.reset

except ImportError:  # another NumPy: the public way

    def hush() -> Any:
        return np.seterr(all="ignore")

    def speak(token: Any) -> None:
        np.seterr(**token)


@contextmanager
def quietly() -> Iterator[None]:
    """Within the block, or the decorated function, NumPy warns of no overflow and no invalid value."""
    token = hush()
    try:
        yield
    finally:
        speak(token)
