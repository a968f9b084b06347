"""`torch.utils._contextlib`: context managers that are decorators, which libraries derive theirs from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....base.context_decorator import decorate

__all__ = ["_DecoratorContextManager", "_NoParamDecoratorContextManager", "_wrap_generator", "context_decorator"]


class _DecoratorContextManager:
    """A context manager; as a decorator it enters a clone of itself around each call."""

    def __call__(self, orig_func: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isclass(orig_func):
            return context_decorator(self.clone, lambda *args, **kwargs: orig_func(*args, **kwargs))
        return context_decorator(self.clone, orig_func)

    def __enter__(self) -> Any:
        raise NotImplementedError

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> Any:
        raise NotImplementedError

    def clone(self) -> Any:
        """Another one; a subclass whose constructor has parameters overrides it."""
        return self.__class__()


class _NoParamDecoratorContextManager(_DecoratorContextManager):
    """One that decorates without parentheses, too."""

    def __new__(cls, orig_func: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if orig_func is None else cls()(orig_func)


def context_decorator(ctx: Any, func: Callable[..., Any]) -> Callable[..., Any]:
    """`func` within a context manager at each call; of a generator, whenever its code runs.

    ctx: a context manager that can be entered again, or what makes one. Raises RuntimeError for a class.
    """
    if inspect.isclass(func):
        raise RuntimeError("context_decorator: needs a function, got a class; decorate its methods")
    return decorate(ctx if callable(ctx) else lambda: ctx, func, "context_decorator")


def _wrap_generator(ctx_factory: Callable[[], Any], func: Callable[..., Any]) -> Callable[..., Any]:
    """A generator function whose code runs within the context, and that of its caller outside of it."""
    return decorate(ctx_factory, func, "context_decorator")
