"""Workers: values made ahead of their use, by threads or by processes, and handed out in order."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextvars import copy_context
from itertools import islice
from multiprocessing import connection
from typing import Any, NamedTuple, TypeVar

from ..backends.cpu import threads as blas
from ..base.errors import ArgumentError, StateError

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Work(NamedTuple):
    """What workers do: make(dataset, *more, key) for each key that they are given.

    count: how many there are. begin: called in each with its number before it does anything. seed: of the first.
    """

    make: Callable[..., Any]
    dataset: Any
    more: tuple[Any, ...] = ()
    count: int = 1
    begin: Callable[[int], Any] | None = None
    seed: int = 0


class WorkerInfo(NamedTuple):
    """What a worker knows of itself: its number, how many there are, a seed of its own, the dataset it works on."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


def get_worker_info() -> WorkerInfo | None:
    """About the worker that calls; None outside of any. By it an IterableDataset knows which share it is to give."""
    return getattr(_own, "info", None)


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


def on_threads(work: Work, numbers: Sequence[int]) -> Executor:
    """Workers of these numbers, each a thread; what they make sees the caller's context, its autocast among others."""
    return _Threads(len(numbers), "ampkit-loader", _become_next, (work, _queued(queue.SimpleQueue, numbers)))


class _Threads(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(copy_context().run, fn, *args, **kwargs)


def on_processes(work: Work, numbers: Sequence[int], context: Any) -> Executor:
    """Workers of these numbers, each a process of `context`: "spawn", "forkserver", or multiprocessing's of these.

    They leave Ctrl-C to the process that started them, end when that does, and use one BLAS thread each.
    Raises ArgumentError for what cannot be sent to another process.
    """
    try:
        task = pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        cure = "define its classes and functions at the top of a module, or use threads: no multiprocessing_context"
        raise ArgumentError("DataLoader", "a dataset that can be pickled for processes", str(error), cure) from None
    context = multiprocessing.get_context(context) if isinstance(context, str) else context
    # A shared Value may be the memory of an older one, which a late process changes: a queue is this pool's alone.
    return ProcessPoolExecutor(len(numbers), context, _begin, (task, _queued(context.SimpleQueue, numbers)))


def _queued(make: Callable[[], Any], numbers: Sequence[int]) -> Any:
    made = make()
    for number in numbers:
        made.put(number)
    return made


def check_context(context: Any) -> None:
    """Raises ArgumentError for what is no kind of process that is safe beside the threads of BLAS and oneDNN."""
    known = context is None or isinstance(context, str)
    method = context if known or not hasattr(context, "get_start_method") else context.get_start_method()
    if method not in (None, "spawn", "forkserver"):
        cure = "a forked process hangs in the threads that it has lost"
        raise ArgumentError("DataLoader", "multiprocessing_context 'spawn' or 'forkserver'", repr(method), cure)


# what a worker runs

_own = threading.local()  # its work, its info, and how it failed to begin; a process works in one thread


def _become_next(work: Work, numbers: Any) -> None:
    number = numbers.get()
    _own.work, _own.failed = work, None
    _own.info = WorkerInfo(number, work.count, work.seed + number, work.dataset)
    try:
        if work.begin is not None:
            work.begin(number)
    except Exception as error:  # it comes out of the first batch
        _own.failed = error


def _begin(task: bytes, numbers: Any) -> None:
    # Ctrl-C, and SIGHUP of a closed terminal, reach the whole group of processes: the one that started this ends it.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if blas.can_set_num_threads():
        blas.set_num_threads(1)
    _become_next(pickle.loads(task), numbers)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def made(key: Any) -> Any:
    """In a worker: the value of a key."""
    if _own.failed is not None:
        raise _own.failed
    return _own.work.make(_own.work.dataset, *_own.work.more, key)
