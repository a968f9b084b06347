"""`functions.async_execution`, by PyTorch's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...base.errors import DTypeError
from .futures import Future

_F = TypeVar("_F", bound=Callable[..., Any])
_MARK = "_ampkit_answers_later"


def async_execution(fn: _F) -> _F:
    """Declare that a function returns a Future, whose result is the answer; its thread serves others meanwhile.

    As torch.distributed.rpc.functions.async_execution.
    """
    target: Any = fn.__func__ if isinstance(fn, (staticmethod, classmethod)) else fn
    setattr(target, _MARK, True)
    return fn


def called(function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """What a function returns, a Future where async_execution declares one. Raises DTypeError where it is none."""
    result = function(*args, **kwargs)
    if getattr(function, _MARK, False) and not isinstance(result, Future):
        got = f"a {type(result).__name__}"
        raise DTypeError(name, "a Future from a function of @rpc.functions.async_execution", got)
    return result
