"""`torch.futures`: results that may come later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, Generic, TypeVar

__all__ = ["Future", "collect_all", "wait_all"]

_T = TypeVar("_T")


class Future(Generic[_T]):
    """A result that a thread sets, and that others wait for."""

    def __init__(self, *, devices: Any = None):
        self._future: futures.Future[Any] = futures.Future()

    def done(self) -> bool:
        """Whether it has its result."""
        return self._future.done()

    def wait(self) -> Any:
        """The result, once it is there. Raises the exception that was set instead."""
        return self._future.result()

    def value(self) -> Any:
        """The result, which is there."""
        return self._future.result(0)

    def set_result(self, result: Any) -> None:
        """Set the result, once."""
        self._future.set_result(result)

    def set_exception(self, result: BaseException) -> None:
        """Set an exception in the place of the result."""
        self._future.set_exception(result)

    def add_done_callback(self, callback: Callable[[Future[Any]], None]) -> None:
        """Call `callback(self)` when the result is there."""
        self._future.add_done_callback(lambda _: callback(self))

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


def wait_all(futures: Sequence[Future[Any]]) -> list[Any]:
    """The results, once all are there."""
    return [future.wait() for future in futures]


def collect_all(futures: Sequence[Future[Any]]) -> Future[Any]:
    """The future of the list, once all have their results."""
    together: Future[Any] = Future()
    left = [len(futures)]

    def count(_: Future[Any]) -> None:
        left[0] -= 1
        if not left[0]:
            together.set_result(list(futures))

    for future in futures:
        future.add_done_callback(count)
    if not futures:
        together.set_result([])
    return together
