"""What a function is given, checked before it runs. Ops check their tensors themselves (see core/plan.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import isfunction, signature
from typing import Any

from .. import backends
from ..core.arguments import Checks
from ..core.errors import AmpkitError, unfit
from ..core.tensor import Tensor

__all__: list[str] = []


def checked(function: Any) -> Any:
    """`function` (or method), which raises DTypeError or ArgumentError for what its annotations do not take.

    What Python or NumPy raise for the types of its other arguments becomes a DTypeError too. An op, a class, or a
    function from elsewhere comes back as it is.
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
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, AmpkitError) or error.__traceback__.tb_next is None:  # type: ignore[union-attr]
                raise  # a line of ours already, or Python's about the names of the arguments
            others = signature(function).bind(*args, **kwargs).arguments
            raise unfit(where, {k: v for k, v in others.items() if not isinstance(v, Tensor)}, error) from error
        except MemoryError as error:
            raise backends.exhausted([a.array for a in args if isinstance(a, Tensor)], error) from None

    return call
