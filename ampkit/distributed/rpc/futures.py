"""Future: a result that comes later, from a thread or another process; by the names of `torch.futures`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
from threading import Lock
from typing import Any, Generic, TypeVar

from .threads import Threads

__all__ = ["Future", "collect_all", "wait_all"]

_T = TypeVar("_T")


class Future(Generic[_T]):
    """A result that a thread sets, and that others wait for. As torch.futures.Future; devices has no effect."""

    def __init__(self, *, devices: Any = None):
        self._future: futures.Future[Any] = futures.Future()
        self._callers: Threads | None = None  # whose threads call what is to be called afterwards

    def done(self) -> bool:
        """Whether it has its result."""
        return self._future.done()

    def wait(self) -> Any:
        """The result, once it is there. Raises the exception that was set instead."""
        return self._future.result()

    def value(self) -> Any:
        """The result, which is there."""
        return self._future.result(0)

    def exception(self) -> BaseException | None:
        """The exception that was set in the place of the result, once one of them is there; None for a result."""
        return self._future.exception()

    def set_result(self, result: Any) -> None:
        """Set the result, once."""
        self._future.set_result(result)

    def set_exception(self, result: BaseException) -> None:
        """Set an exception in the place of the result."""
        self._future.set_exception(result)

    def add_done_callback(self, callback: Callable[[Future[Any]], Any]) -> None:
        """Call `callback(self)` when the result is there."""
        if self._callers is None:
            self._future.add_done_callback(lambda _: callback(self))
            return
        begun, callers = futures.Future[None](), self._callers
        begun.add_done_callback(lambda _: callback(self))  # which logs what the callback raises

        self._future.add_done_callback(lambda _: callers.submit(begun.set_result, None))

    def then(self, callback: Callable[[Future[Any]], Any]) -> Future[Any]:
        """The future of `callback(self)`."""
        following: Future[Any] = Future()

        def run(done: Future[Any]) -> None:
            try:
                following.set_result(callback(done))
            except Exception as error:
                following.set_exception(error)

        self.add_done_callback(run)
        return following


def called_by(callers: Threads) -> Future[Any]:
    """A Future whose callbacks run in threads of `callers`, not in the one that sets the result."""
    made: Future[Any] = Future()
    made._callers = callers
    return made


def wait_all(futures: Sequence[Future[Any]]) -> list[Any]:
    """The results, once all are there."""
    return [future.wait() for future in futures]


def collect_all(futures: Sequence[Future[Any]]) -> Future[Any]:
    """The future of the list, once all have their results."""
    together: Future[Any] = Future()
    left = [len(futures)]
    lock = Lock()

    def count(_: Future[Any]) -> None:
        with lock:
            left[0] -= 1
            last = not left[0]
        if last:
            together.set_result(list(futures))

    for future in futures:
        future.add_done_callback(count)
    if not futures:
        together.set_result([])
    return together
