"""Context managers as decorators, for functions, generators and coroutines: `autocast`, `no_grad`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from .errors import DTypeError

_F = TypeVar("_F", bound=Callable[..., Any])


def decorate(region: Callable[[], AbstractContextManager[Any]], function: _F, where: str) -> _F:
    """`function`, which runs inside the context `region()`: a plain function, a generator or a coroutine.

    Raises DTypeError, naming `where`, for anything else.
    """
    if not callable(function):
        raise DTypeError(where, "a callable", f"an object of type {type(function).__name__}")
    if isinstance(function, type):
        cure = "decorate its methods; around a class only the construction would run inside"
        raise DTypeError(where, "a function, a generator or a coroutine", f"the class {function.__name__}", cure)
    if inspect.isasyncgenfunction(function):
        cure = "open the region with `with` inside the function"
        raise DTypeError(where, "a function, a generator or a coroutine", "an async generator", cure)
    if inspect.isgeneratorfunction(function):
        return cast(_F, _generator(region, function))
    if inspect.iscoroutinefunction(function):
        return cast(_F, _coroutine(region, function))

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with region():
            return function(*args, **kwargs)

    return cast(_F, inside)


def _coroutine(region: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def inside(*args: Any, **kwargs: Any) -> Any:
        with region():
            return await function(*args, **kwargs)

    return inside


def _generator(region: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    # The context is open only while the generator runs: entered at each resume, left at each yield.
    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        steps = function(*args, **kwargs)
        resume, value = steps.send, None
        try:
            while True:
                with region():
                    item = resume(value)
                try:
                    resume, value = steps.send, (yield item)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    resume, value = steps.throw, error
        except StopIteration as end:
            return end.value
        finally:
            with region():
                steps.close()

    return inside
