"""Workers: values made on threads ahead of their use, and handed out in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def in_order(make: Callable[[_Key], _Value], keys: Iterable[_Key], threads: int, ahead: int) -> Iterator[_Value]:
    """make(key) for each key, in the order of the keys, made by `threads` threads up to `ahead` values in advance.

    `keys` are drawn in the calling thread. An exception of `make` comes out where its value would have, and ends it.
    When the iterator ends, is closed or is dropped, what has not begun is given up, and what has is waited for.
    """
    pool, keys = ThreadPoolExecutor(threads, "ampkit-loader"), iter(keys)
    coming: deque[Future[_Value]] = deque()
    try:
        while True:
            # In the caller's context, as without threads: a dataset sees the caller's autocast and no_grad.
            coming.extend(pool.submit(copy_context().run, make, key) for key in islice(keys, ahead - len(coming)))
            if not coming:
                return
            yield coming.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
