"""The gather of the next group of parameters, which begins in the background while the module of this one computes.

Next comes what came next the last time, in forward and in backward; so the first step gathers nothing ahead. All ranks
run the same modules, so they begin the same gathers. Where another group comes, or rows have changed, what was begun is
let go of: it ends in the background, and nobody waits for it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from ...backends import Array
from ...base.dtypes import DType
from ...core.autograd import hooks


class Prefetch(threading.local):
    """What a thread gathers ahead."""

    def __init__(self) -> None:
        self._last: Any = None  # the group that was gathered last in this forward or backward
        # A group, what is gathered of it, the versions of its rows, and what waits for the end.
        self._begun: tuple[Any, ...] | None = None

    def end(self) -> None:
        """End a forward or a backward. What was gathered in vain is let go of."""
        self._last = self._begun = None

    def take(self, group: Any, wanted: Any, versions: list[int]) -> Callable[[], list[Array]] | None:
        """What ends the gather of what is `wanted` of a group, if it has begun."""
        begun, self._begun = self._begun, None
        return begun[3] if begun is not None and begun[:3] == (group, wanted, versions) else None

    def follow(self, group: Any, low: DType | None) -> None:
        """Note that `group` was gathered, in `low`, and begin with the one that followed it the last time."""
        in_backward = bool(hooks.passes.running)
        if self._last is not None:
            self._last.followed_by[in_backward] = weakref.ref(group), low
        self._last = group
        reference, its_low = group.followed_by.get(in_backward, (lambda: None, None))
        if (following := reference()) is not None and (begun := following.gather_ahead(its_low)) is not None:
            self._begun = following, *begun


prefetch = Prefetch()
