"""Workers: values made ahead of their use, by threads or by processes, and handed out in order."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextvars import copy_context
from itertools import islice
from multiprocessing import connection
from typing import Any, TypeVar

from ..backends.cpu import threads as blas
from ..core.errors import ArgumentError, StateError

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def in_order(
    submit: Callable[[_Key], Future[_Value]], keys: Iterable[_Key], ahead: int, timeout: float = 0
) -> Iterator[_Value]:
    """What the future of submit(key) brings for each key, in the order of the keys, with `ahead` of them under way.

    `keys` are drawn in the calling thread. An exception comes out where its value would have, and ends it; when the
    iterator ends, is closed or is dropped, what has not begun is given up. timeout: seconds to wait for a value, 0 for
    no end. Raises StateError when they are over, and where a process ended on its own.
    """
    keys, coming = iter(keys), deque[Future[_Value]]()
    try:
        while True:
            coming.extend(submit(key) for key in islice(keys, ahead - len(coming)))
            if not coming:
                return
            first = coming.popleft()
            if not wait([first], timeout or None).done:
                raise StateError("DataLoader", f"a batch within timeout={timeout:g} s", "none by then")
            yield first.result()
    except BrokenProcessPool:
        cure = "was it killed, or out of memory? A script that starts workers needs `if __name__ == '__main__':`"
        raise StateError("DataLoader", "workers that stay alive", "one that ended on its own", cure) from None
    finally:
        for future in coming:
            future.cancel()


def on_threads(
    make: Callable[[_Key], _Value], keys: Iterable[_Key], threads: int, ahead: int, timeout: float = 0
) -> Iterator[_Value]:
    """make(key) for each key, by `threads` threads in the caller's context, so that a dataset sees its autocast.

    What is under way when the iterator ends is waited for. See `in_order`.
    """
    pool = ThreadPoolExecutor(threads, "ampkit-loader")
    try:
        yield from in_order(lambda key: pool.submit(copy_context().run, make, key), keys, ahead, timeout)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def processes(
    make: Callable[..., Any], given: tuple[Any, ...], count: int, context: Any, begin: Callable[[int], Any] | None
) -> ProcessPoolExecutor:
    """A pool of `count` processes, in which `made(key)` is make(*given, key).

    context: "spawn" or "forkserver", or one of multiprocessing's of these kinds. begin: called in each process with its
    number. They leave Ctrl-C to the process that started them, end when that does, and use one BLAS thread each.
    Raises ArgumentError for what cannot be sent to another process.
    """
    try:
        task = pickle.dumps((make, given, begin))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        cure = "define its classes and functions at the top of a module, or use threads: no multiprocessing_context"
        raise ArgumentError("DataLoader", "a dataset that can be pickled for processes", str(error), cure) from None
    context = multiprocessing.get_context(context) if isinstance(context, str) else context
    numbers = context.SimpleQueue()  # a shared Value may be the memory of an older one, which a late process changes
    for number in range(count):
        numbers.put(number)
    return ProcessPoolExecutor(count, context, _begin, (task, numbers))


def check_context(context: Any) -> None:
    """Raises ArgumentError for what is no kind of process that is safe beside the threads of BLAS and oneDNN."""
    method = context if context is None or isinstance(context, str) else context.get_start_method()
    if method not in (None, "spawn", "forkserver"):
        cure = "a forked process hangs in the threads that it has lost"
        raise ArgumentError("DataLoader", "multiprocessing_context 'spawn' or 'forkserver'", repr(method), cure)


# what a process runs

_task: list[Any] = []


def _begin(task: bytes, numbers: Any) -> None:
    # Ctrl-C reaches the whole group of processes: the one that started this ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if blas.settable():
        blas.set_num_threads(1)
    make, given, begin = pickle.loads(task)
    number = numbers.get()
    if begin is not None:
        begin(number)
    _task[:] = [make, given]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def made(key: Any) -> Any:
    """In a process of the pool: the value of a key."""
    make, given = _task
    return make(*given, key)
