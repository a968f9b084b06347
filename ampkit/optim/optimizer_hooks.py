"""Hooks of optimizers: functions that run before or after a step, or where a state is saved or loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any

from ..base.errors import DTypeError
from ..core.autograd.hooks import Handle

Hook = Callable[..., Any]
_everywhere: dict[str, dict[int, Hook]] = {"step_pre": {}, "step_post": {}}  # hooks of all optimizers
_serial = count().__next__


class OptimizerHooks:
    """The methods of an Optimizer that register hooks; each returns a handle, whose `remove()` takes the hook away.

    Hooks of a step run for each call of `step`. With one, a GradScaler reads on the host whether all gradients are
    finite, and calls `step` only then. Raises DTypeError for a hook that is not callable.
    """

    def __init__(self) -> None:
        self._hooks: dict[str, dict[int, Hook]] = {}  # by table: those that were registered, by their number
        self._stepping = False

    def register_step_pre_hook(self, hook: Hook) -> Handle:
        """Call hook(optimizer, args, kwargs) before a step, with the optimizer as args[0].

        If it returns a pair, that is what `step` gets as args and kwargs.
        """
        return self._register("step_pre", hook)

    def register_step_post_hook(self, hook: Hook) -> Handle:
        """Call hook(optimizer, args, kwargs) after a step."""
        return self._register("step_post", hook)

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> Handle:
        """Call hook(optimizer) before `state_dict`; prepend: before the hooks that are there."""
        return self._register("state_dict_pre", hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> Handle:
        """Call hook(optimizer, state_dict) at the end of `state_dict`, which returns what it returns, if not None."""
        return self._register("state_dict_post", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> Handle:
        """Call hook(optimizer, state_dict) before `load_state_dict`, which loads what it returns, if not None."""
        return self._register("load_pre", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> Handle:
        """Call hook(optimizer) after `load_state_dict`."""
        return self._register("load_post", hook, prepend)

    def has_step_hooks(self) -> bool:
        """Whether a hook, of this optimizer or of all, runs with a step."""
        return any(self._hooks.get(table) or hooks for table, hooks in _everywhere.items())

    def _register(self, table: str, hook: Hook, prepend: bool = False) -> Handle:
        hooks = self._hooks.setdefault(table, {})
        later = dict(hooks) if prepend else {}
        if prepend:
            hooks.clear()
        handle = _added(hooks, hook)
        hooks.update(later)
        return handle

    def _run_hooks(self, table: str, value: Any = None) -> Any:
        """Call the hooks of a state with the optimizer and `value`, if it is not None; the value that they leave."""
        for hook in list(self._hooks.get(table, {}).values()):
            made = hook(self) if value is None else hook(self, value)
            value = made if value is not None and made is not None else value
        return value


def register_optimizer_step_pre_hook(hook: Hook) -> Handle:
    """Register a `register_step_pre_hook` of all optimizers; it runs before their own."""
    return _added(_everywhere["step_pre"], hook)


def register_optimizer_step_post_hook(hook: Hook) -> Handle:
    """Register a `register_step_post_hook` of all optimizers; it runs after their own."""
    return _added(_everywhere["step_post"], hook)


def _added(hooks: dict[int, Hook], hook: Any) -> Handle:
    if not callable(hook):
        raise DTypeError("hook", "a callable", f"a {type(hook).__name__}")
    key = _serial()
    hooks[key] = hook
    return Handle(hooks, key)


def with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """A `step` that runs the hooks; once, where a subclass's calls that of its base."""

    @wraps(step)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._stepping or not self.has_step_hooks():
            return step(self, *args, **kwargs)
        self._stepping, given = True, (self, *args)
        try:
            for hook in [*_everywhere["step_pre"].values(), *self._hooks.get("step_pre", {}).values()]:
                made = hook(self, given, kwargs)
                if made is not None:
                    if not isinstance(made, tuple) or len(made) != 2:
                        needs = "None or (args, kwargs) from a hook before the step"
                        raise DTypeError(f"{type(self).__name__}.step", needs, f"a {type(made).__name__}")
                    given, kwargs = made
            out = step(*given, **kwargs)
            for hook in [*self._hooks.get("step_post", {}).values(), *_everywhere["step_post"].values()]:
                hook(self, given, kwargs)
        finally:
            self._stepping = False
        return out

    return hooked
