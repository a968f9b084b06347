"""NumPy's floating-point warnings, off: overflow and invalid values are results here, found by the loss scale.

`push_ignore()` turns the warnings off in this context and returns the token with which `pop_ignore` restores them;
`ignore_fp_errors` is both, as a block or a decorator, where a microsecond does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ContextDecorator
from functools import partial
from typing import Any

import numpy as np

try:  # the two halves of np.errstate, at a third of its cost; a recorded op calls them once
    from numpy._core._multiarray_umath import _extobj_contextvar, _make_extobj  # type: ignore  # private, absent in some NumPy

    push_ignore: Callable[[], Any] = partial(_extobj_contextvar.set, _make_extobj(all="ignore"))
    pop_ignore: Callable[[Any], None] = _extobj_contextvar.reset

except ImportError:  # another NumPy: the public way

    def push_ignore() -> Any:
        return np.seterr(all="ignore")

    def pop_ignore(token: Any) -> None:
        np.seterr(**token)


class ignore_fp_errors(ContextDecorator):
    """Within the block, or the decorated function, NumPy warns of no overflow and no invalid value."""

    _token: Any

    def _recreate_cm(self) -> ignore_fp_errors:
        return ignore_fp_errors()  # each call of a decorated function has a token of its own

    def __enter__(self) -> None:
        self._token = push_ignore()

    def __exit__(self, *error: object) -> None:
        pop_ignore(self._token)
