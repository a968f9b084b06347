"""What a function is given: tensors where its signature says Tensor. Ops see to it themselves (see core/plan.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import isfunction, signature
from types import NoneType
from typing import Any

from ..core.errors import AmpkitError, DTypeError, unfit
from ..core.tensor import Tensor

__all__: list[str] = []

_KINDS = {"Tensor": Tensor, "Tensor | None": (Tensor, NoneType)}


def checked(function: Any) -> Any:
    """`function` (or method), which raises DTypeError for anything but a Tensor in a parameter that is annotated so.

    What Python or NumPy raise for the types of its other arguments becomes a DTypeError too. An op, a class, or a
    function from elsewhere comes back as it is.
    """
    if not isfunction(function) or not function.__module__.startswith("ampkit."):
        return function
    parameters = signature(function).parameters.values()
    kinds = {p.name: _KINDS.get(p.annotation, object) for p in parameters}
    while kinds and list(kinds.values())[-1] is object:
        kinds.popitem()
    return _checked(function, kinds)


def _checked(function: Callable[..., Any], kinds: dict[str, Any]) -> Callable[..., Any]:
    pairs, where = list(kinds.items()), function.__qualname__.partition(".")[0]  # of a method, its class

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for (name, kind), item in zip(pairs, args, strict=False):
            if not isinstance(item, kind):
                raise _error(where, name, item)
        for name in kwargs.keys() & kinds if kwargs else ():
            if not isinstance(kwargs[name], kinds[name]):
                raise _error(where, name, kwargs[name])
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, AmpkitError) or error.__traceback__.tb_next is None:  # type: ignore[union-attr]
                raise  # a line of ours already, or Python's about the names of the arguments
            others = signature(function).bind(*args, **kwargs).arguments
            raise unfit(where, {k: v for k, v in others.items() if k not in kinds}, error) from error

    return call


def _error(where: str, name: str, item: Any) -> DTypeError:
    got, cure = type(item).__name__, "wrap it: ampkit.tensor(...)"
    return DTypeError(where, f"a Tensor for `{name}`", *(("None",) if item is None else (got, cure)))
