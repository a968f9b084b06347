"""Functions that run side by side in threads, with the bits of a run in which each ran where it was begun.

What decides the bits is the same in both: a task has a random stream of its own, split off where it is begun, and its
nodes have the places on the tape that they would have had there, so that a backward pass adds gradients in one order.
Kernels leave Python's lock while they compute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future as Outcome
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from operator import attrgetter
from threading import Lock
from typing import Any, Generic, TypeVar

from ampkit import backends
from ampkit.backends.cpu.threads import get_num_threads, set_own_threads, usable_cpus
from ampkit.backends.threads import on_this_device
from ampkit.base import observe
from ampkit.base.errors import DTypeError

from .. import random
from ..capture.recorder import recorders
from ..tensor import Tensor, tick
from .reachable import nodes_below

_T = TypeVar("_T")
MOST_PLACES = 2**51  # that a float64 tells apart
_pool: ThreadPoolExecutor | None = None


class Future(Generic[_T]):
    """What `fork` returns: a result that a thread computes, unless `wait` comes first and computes it itself."""

    def __init__(self, function: Callable[[], _T]):
        self._function: Callable[[], _T] | None = function
        self._claimed, self._outcome = Lock(), Outcome[_T]()

    def _run(self) -> None:
        if not self._claimed.acquire(blocking=False):
            return
        function, self._function = self._function, None
        assert function is not None
        try:
            self._outcome.set_result(function())
        except BaseException as error:
            self._outcome.set_exception(error)

    def wait(self) -> _T:
        """The result, once it is there. Raises what the function raised."""
        self._run()
        return self._outcome.result()

    def done(self) -> bool:
        """Whether it has its result."""
        return self._outcome.done()

    def value(self) -> _T:
        """The result, which is there."""
        return self._outcome.result(0)

    def add_done_callback(self, callback: Callable[[Future[_T]], Any]) -> None:
        """Call `callback(self)` when the result is there."""
        self._outcome.add_done_callback(lambda _: callback(self))


def fork(func: Callable[..., _T], *args: Any, **kwargs: Any) -> Future[_T]:
    """Begin func(*args, **kwargs) in a thread beside what follows. `wait` returns its result.

    It is in the autocast region and the gradient mode of the caller. Its tensors and those of the caller may meet in
    one backward pass; what it reads must not be changed in place before `wait`. Each task computes on half of the
    caller's threads, at least one. The bits are those of a run in which func runs at once, whatever finishes first:
    random numbers are drawn from a stream that this call splits off the caller's.
    On a GPU, and where a step is recorded (`ampkit.compile`) or observed (`ampkit.observe`), func runs at once.
    Raises DTypeError for a func that cannot be called.
    """
    if not callable(func):
        raise DTypeError("fork", "a function", f"a {type(func).__name__}")
    stream, context, since = random.split(), copy_context(), tick()

    def task() -> _T:
        with random.drawing_from(stream):
            result = func(*args, **kwargs)
        _place(result, since)
        return result

    future = Future(lambda: context.run(task))
    if recorders or observe.observers or observe.profilers or backends.gpus is not None:
        future._run()
    else:
        _start(future)
    return future


def _start(future: Future[Any]) -> None:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="ampkit-task")
    _pool.submit(on_this_device(_compute), future, max(1, get_num_threads() // 2))


def _compute(future: Future[Any], threads: int) -> None:
    set_own_threads(threads)
    future._run()


def wait(future: Future[_T]) -> _T:
    """The result of a `fork`, once it is there. Raises what its function raised."""
    if not hasattr(future, "wait"):
        raise DTypeError("wait", "what fork returned", f"a {type(future).__name__}")
    return future.wait()


def _forget() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_forget)


def _place(result: Any, since: int) -> None:
    """Give the nodes behind a result, recorded after the time `since`, places between it and the next time."""
    roots = [tensor._tape_node for tensor in _tensors(result) if tensor._tape_node is not None]
    nodes = sorted(nodes_below([root for root in roots if root.serial > since], since + 1), key=attrgetter("order"))
    if since * (len(nodes) + 1) < MOST_PLACES:
        for number, node in enumerate(nodes, 1):
            node.place = since + number / (len(nodes) + 1)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for each in value:
            yield from _tensors(each)
