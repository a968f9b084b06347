"""Workers: threads or processes that compute values ahead of their use; results come in order."""

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

from ...backends.cpu import threads as blas
from ...backends.threads import on_this_device
from ...base.errors import ArgumentError, DTypeError, StateError

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Work(NamedTuple):
    """The task of workers: make(dataset, *arguments, key) for each key.

    total: the number of workers. begin: called in each with its number before its first key. seed: of the first.
    """

    make: Callable[..., Any]
    dataset: Any
    arguments: tuple[Any, ...] = ()
    total: int = 1
    begin: Callable[[int], Any] | None = None
    seed: int = 0


class WorkerInfo(NamedTuple):
    """A worker's number, the number of workers, its seed, and its dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


def get_worker_info() -> WorkerInfo | None:
    """The calling worker, None outside of workers. An IterableDataset derives its share of the items from it."""
    return getattr(_this_worker, "info", None)


def in_order(
    submit: Callable[[_Key], Future[_Value]],
    keys: Iterable[_Key],
    ahead: int,
    timeout: float = 0,
    failed: Callable[[_Key, Exception], _Value] | None = None,
) -> Iterator[_Value]:
    """The results of submit(key) for each key, in the order of the keys, with `ahead` of them pending.

    `keys` is iterated in the calling thread. An exception is raised in place of its value and ends the iteration, or
    failed(key, exception) takes the place of the value. When the iterator ends, is closed or is dropped, pending calls
    are cancelled. timeout: seconds to wait for a value, 0 for no limit. Raises StateError after the timeout, and if a
    worker process died.
    """
    keys, pending = iter(keys), deque[tuple[_Key, Future[_Value]]]()
    try:
        while True:
            pending.extend((key, submit(key)) for key in islice(keys, ahead - len(pending)))
            if not pending:
                return
            key, first = pending.popleft()
            if not wait([first], timeout or None).done:
                raise StateError("DataLoader", f"a batch within timeout={timeout:g} s", "none by then")
            error = first.exception()
            if failed is None or not isinstance(error, Exception) or isinstance(error, BrokenProcessPool):
                yield first.result()
            else:
                yield failed(key, error)
    except BrokenProcessPool:
        cure = "was it killed, or out of memory? A script that starts workers needs `if __name__ == '__main__':`"
        raise StateError("DataLoader", "workers that stay alive", "one that ended on its own", cure) from None
    finally:
        for _, future in pending:
            future.cancel()


def on_threads(work: Work, numbers: Sequence[int]) -> Executor:
    """A pool of threads with these worker numbers; they run in the caller's context, with its autocast."""
    given = work, _queue_of(queue.SimpleQueue, numbers)
    return _Threads(len(numbers), "ampkit-loader", on_this_device(_become_worker), given)


class _Threads(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(copy_context().run, fn, *args, **kwargs)


def on_processes(work: Work, numbers: Sequence[int], context: Any) -> Executor:
    """A pool of processes with these worker numbers; context: "spawn", "forkserver", or multiprocessing's objects.

    They ignore Ctrl-C, exit when the process that started them does, and use one BLAS thread each.
    Raises ArgumentError for a task that cannot be pickled.
    """
    try:
        task = pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        cure = "define its classes and functions at the top of a module, or use threads: no multiprocessing_context"
        raise ArgumentError("DataLoader", "a dataset that can be pickled for processes", str(error), cure) from None
    context = multiprocessing.get_context(context) if isinstance(context, str) else context
    # A shared Value may be the memory of an older one, which a late process changes: a queue is this pool's alone.
    return ProcessPoolExecutor(len(numbers), context, _begin_process, (task, _queue_of(context.SimpleQueue, numbers)))


def _queue_of(make: Callable[[], Any], numbers: Sequence[int]) -> Any:
    made = make()
    for number in numbers:
        made.put(number)
    return made


def start_method(context: Any) -> str | None:
    """How workers start by a multiprocessing_context, None for threads.

    "fork", by which PyTorch starts workers where nothing else is said, gives threads as well: a forked process would
    hang in the threads of BLAS and oneDNN that it has lost.
    Raises DTypeError for what is no context, ArgumentError for another word.
    """
    if context is not None and not isinstance(context, str) and not hasattr(context, "get_start_method"):
        raise DTypeError("DataLoader", "multiprocessing_context as a word or a context", type(context).__name__)
    method = context if context is None or isinstance(context, str) else context.get_start_method()
    if method not in (None, "fork", "spawn", "forkserver"):
        raise ArgumentError("DataLoader", "multiprocessing_context 'fork', 'spawn' or 'forkserver'", repr(method))
    return None if method == "fork" else method


# in a worker

_this_worker = threading.local()  # its work, its info, and how it failed to begin; a process works in one thread


def _become_worker(work: Work, numbers: Any) -> None:
    number = numbers.get()
    _this_worker.work, _this_worker.failed = work, None
    _this_worker.info = WorkerInfo(number, work.total, work.seed + number, work.dataset)
    try:
        if work.begin is not None:
            work.begin(number)
    except Exception as error:  # raised by the first batch
        _this_worker.failed = error


def _begin_process(task: bytes, numbers: Any) -> None:
    # Ctrl-C, and SIGHUP of a closed terminal, reach the whole group of processes: the one that started this ends it.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=on_this_device(_end_with_parent), daemon=True).start()
    if blas.can_set_num_threads():
        blas.set_num_threads(1)
    _become_worker(pickle.loads(task), numbers)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def run(key: Any) -> Any:
    """In a worker: the value of a key."""
    failed = _this_worker.failed
    if isinstance(failed, Exception):
        _this_worker.failed = repr(failed)  # alone: its traceback holds the iterator whose end ends this worker
        raise failed
    if failed is not None:
        raise StateError("DataLoader", "a worker that began", failed)
    return _this_worker.work.make(_this_worker.work.dataset, *_this_worker.work.arguments, key)
