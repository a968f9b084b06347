"""A map over parts of flat memory by a pool of threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from .threads import get_num_threads, use_one_thread


@cache
def _workers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "ampkit-update", initializer=use_one_thread)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # threads do not survive a fork


def parallel_map(work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """Return `work(part)` for each part, in order. The threads do not see the caller's context variables."""
    count = get_num_threads()
    if count == 1 or len(parts) <= 1:
        return [work(part) for part in parts]
    return list(_workers(count).map(work, parts))
