"""`torch.overrides`: classes and modes that take over the functions they are given to (core/dispatch/overrides.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from ....core.dispatch import overrides
from ....core.dispatch.overrides import TorchFunctionMode
from ....core.tensor import Tensor

__all__ = [
    "BaseTorchFunctionMode", "TorchFunctionMode", "_get_current_function_mode", "_get_current_function_mode_stack",
    "enable_reentrant_dispatch", "get_default_nowrap_functions", "get_ignored_functions", "handle_torch_function",
    "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic", "is_tensor_like",
    "is_tensor_method_or_property", "resolve_name", "wrap_torch_function",
]  # fmt: skip


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Whether a mode in force, or the class of one of the arguments, takes over a call with them."""
    return overrides.has_overrides(relevant_args)


def has_torch_function_unary(arg: Any) -> bool:
    """`has_torch_function` of one argument."""
    return overrides.has_overrides((arg,))


def has_torch_function_variadic(*relevant_args: Any) -> bool:
    """`has_torch_function` of several arguments."""
    return overrides.has_overrides(relevant_args)


def handle_torch_function(public_api: Any, relevant_args: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
    """Call the `__torch_function__` of the mode in force, or of the arguments. Raises TypeError where all decline."""
    return overrides.call(public_api, args, kwargs, relevant_args)


def wrap_torch_function(dispatcher: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: calls go to the class of one of the arguments that `dispatcher` returns of them."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            relevant = dispatcher(*args, **kwargs)
            if overrides.has_overrides(relevant):
                return overrides.call(call, args, kwargs, relevant)
            return function(*args, **kwargs)

        return call

    return wrap


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that calls the functions as they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _get_current_function_mode() -> Any:
    found = overrides.modes()
    return found[-1] if found else None


def _get_current_function_mode_stack() -> list[Any]:
    return list(overrides.modes())


def enable_reentrant_dispatch() -> Any:
    """A context in which classes of tensors take over functions again."""
    return overrides.EnableTorchFunction()


def is_tensor_like(inp: Any) -> bool:
    """Whether it is a Tensor, or of a class that takes over functions."""
    return isinstance(inp, Tensor) or hasattr(inp, "__torch_function__")


def is_tensor_method_or_property(func: Callable[..., Any]) -> bool:
    """Whether it is a method of Tensor, or the `__get__` of a property."""
    name = getattr(func, "__name__", "")
    return name == "__get__" or vars(Tensor).get(name) is func


def resolve_name(f: Any) -> str | None:
    """The name of a function with its module; None for what has none."""
    name = getattr(f, "__qualname__", getattr(f, "__name__", None))
    return name and f"torch.{name}"


def get_default_nowrap_functions() -> set[Any]:
    """Functions whose results stay what they are: none of those that are handed over."""
    return set()


get_ignored_functions = get_default_nowrap_functions
