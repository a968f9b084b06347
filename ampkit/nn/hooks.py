"""Hooks: functions that run before or after a module's forward."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from ..core.errors import DTypeError
from ..core.hooks import Handle

Hooks = dict[
    int, tuple[Callable[..., Any], bool]
]  # by order of registration: the function, and whether it takes kwargs
_serial = count().__next__


def register(hooks: Hooks, hook: Callable[..., Any], with_kwargs: bool, prepend: bool) -> Handle:
    """Add a hook, last or, with `prepend`, first. Raises DTypeError for something that cannot be called."""
    if not callable(hook):
        raise DTypeError("hook", "a callable", f"a {type(hook).__name__}")
    key = _serial()
    later = dict(hooks) if prepend else {}
    if prepend:
        hooks.clear()
    hooks[key] = (hook, with_kwargs)
    hooks.update(later)
    return Handle(hooks, key)


def call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`module.forward` between the module's hooks."""
    for hook, with_kwargs in list(module._forward_pre_hooks.values()):
        found = hook(module, args, kwargs) if with_kwargs else hook(module, args)
        if found is not None and with_kwargs:
            args, kwargs = found
        elif found is not None:
            args = found if isinstance(found, tuple) else (found,)
    out = module.forward(*args, **kwargs)
    for hook, with_kwargs in list(module._forward_hooks.values()):
        found = hook(module, args, kwargs, out) if with_kwargs else hook(module, args, out)
        out = out if found is None else found
    return out
