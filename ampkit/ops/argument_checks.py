"""What a function is given, checked before it runs. Ops check their tensors themselves (see core/cast_plan.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from typing import Any

from .. import backends
from ..core.arguments import Checks
from ..core.nested import tensors_in
from ..core.tensor import Tensor

__all__: list[str] = []


# functions whose tensors may be on several devices
_OF_SEVERAL_DEVICES = {"to", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"}


def checked(function: Any) -> Any:
    """`function` (or method), which raises DTypeError or ArgumentError for what its annotations do not take.

    An op, a class, or a function from elsewhere comes back as it is.
    """
    if not isfunction(function) or not function.__module__.startswith("ampkit."):
        return function
    return _checked(function)


def check_all(names: dict[str, Any]) -> None:
    """Have the public functions that a module defines, given its `globals()`, check their arguments."""
    for name, item in list(names.items()):
        if not name.startswith("_") and isfunction(item) and item.__module__ == names["__name__"]:
            names[name] = checked(item)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    where = function.__qualname__.partition(".")[0]  # of a method, its class
    checks: list[Checks] = []  # made at the first call: annotations name classes that are defined later

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not checks:
            checks.append(Checks(function))
        checks[0](where, args, kwargs)
        device = None if backends.gpus is None else _enter(where, args, kwargs)
        try:
            return function(*args, **kwargs)
        except MemoryError as error:
            raise backends.out_of_memory_error([a.array for a in args if isinstance(a, Tensor)], error) from None
        finally:
            if device is not None:
                backends.gpus.leave(device)

    return call


def _enter(where: str, args: Any, kwargs: Any) -> Any:
    # Make the device of the tensors the current one.
    arrays = [t.array for t in tensors_in((args, kwargs))]
    return backends.gpus.enter(where, arrays[:1] if where in _OF_SEVERAL_DEVICES else arrays)
