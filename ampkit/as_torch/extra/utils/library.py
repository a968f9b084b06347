"""`torch.library` and `torch.ops`: operators of one's own, by name, with a gradient where one is registered."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from ....autograd import Function

__all__ = ["CustomOpDef", "custom_op", "register_autograd", "register_fake", "register_kernel"]

_defined: dict[str, CustomOpDef] = {}


class CustomOpDef:
    """An operator: the function, recorded as it runs, or as one node once `register_autograd` gave its backward."""

    def __init__(self, name: str, function: Callable[..., Any]):
        self._name, self._function = name, function
        self._node: Callable[..., Any] | None = None
        _defined[name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._node is None:
            return self._function(*args, **kwargs)
        bound = signature(self._function).bind(*args, **kwargs)
        bound.apply_defaults()
        return self._node(*bound.args, **bound.kwargs)

    def register_fake(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` as it is: shapes are those of the results."""
        return fn

    def register_kernel(self, device_types: Any, func: Callable[..., Any] | None = None) -> Any:
        """Take `func` in the place of the function, on every device."""

        def take(fn: Callable[..., Any]) -> Callable[..., Any]:
            self._function = fn
            return fn

        return take if func is None else take(func)

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Any = None) -> None:
        """Have `backward(ctx, *gradients)` compute the gradients of all arguments."""

        def forward(ctx: Any, *args: Any) -> Any:
            output = self._function(*args)
            if setup_context is not None:
                setup_context(ctx, args, output)
            return output

        names = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        kind: Any = type(self._name.rpartition("::")[2], (Function,), names)
        self._node = kind.apply


def custom_op(name: str, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """An operator `namespace::name` of a function; `options` change nothing."""
    return CustomOpDef(name, fn) if fn is not None else lambda function: CustomOpDef(name, function)


def _of(op: Any) -> CustomOpDef:
    return _defined[op] if isinstance(op, str) else op


def register_fake(op: Any, func: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """See CustomOpDef."""
    return func if func is not None else _of(op).register_fake


def register_kernel(op: Any, device_types: Any, func: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """See CustomOpDef."""
    return _of(op).register_kernel(device_types, func)


def register_autograd(op: Any, backward: Callable[..., Any], /, *, setup_context: Any = None, **options: Any) -> None:
    """See CustomOpDef."""
    _of(op).register_autograd(backward, setup_context=setup_context)


class _Operators:
    """`torch.ops`: namespaces of the operators that `custom_op` made."""

    def __init__(self, prefix: str = ""):
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        path = f"{self._prefix}{name}"
        if path in _defined:
            return _defined[path]
        if self._prefix:
            raise AttributeError(f"no operator {path}")
        return _Operators(f"{name}::")


ops = _Operators()
