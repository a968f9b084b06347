"""Pieces of flat memory, each worked on by one of several threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from .threads import alone, get_num_threads


@cache
def _workers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "ampkit-update", initializer=alone)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # a child has none of the threads


def shared_out(work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """What `work` returns for each of the parts, in their order; a thread has no context of its caller's."""
    count = get_num_threads()
    if count == 1 or len(parts) <= 1:
        return [work(part) for part in parts]
    return list(_workers(count).map(work, parts))
