"""Hooks of optimizers: functions that run before or after a step, or where a state is saved or loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ..base.errors import DTypeError
from ..core.autograd.hooks import Handle, add_hook, need_callable
from ..ops.argument_checks import check_methods

Hook = Callable[..., Any]
_everywhere: dict[str, dict[int, Hook]] = {"step_pre": {}, "step_post": {}}  # hooks of all optimizers


class OptimizerHooks:
    """The methods of an Optimizer that register hooks; each returns a handle, whose `remove()` takes the hook away.

    Hooks of a step run for each call of `step`. With one, a GradScaler reads on the host whether all gradients are
    finite, and calls `step` only then. Raises DTypeError for a hook that is not callable.
    """

    _hooks: dict[str, dict[int, Hook]]  # by table: those that were registered, by their number
    _stepping = False

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call hook(optimizer, args, kwargs) before a step, with the optimizer as args[0].

        If it returns a pair, that is what `step` gets as args and kwargs.
        """
        return self._register("step_pre", hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call hook(optimizer, args, kwargs) after a step."""
        return self._register("step_post", hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Call hook(optimizer) before `state_dict`; prepend: before the hooks that are there."""
        return self._register("state_dict_pre", hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Call hook(optimizer, state_dict) at the end of `state_dict`, which returns what it returns, if not None."""
        return self._register("state_dict_post", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Call hook(optimizer, state_dict) before `load_state_dict`, which loads what it returns, if not None."""
        return self._register("load_pre", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Call hook(optimizer) after `load_state_dict`."""
        return self._register("load_post", hook, prepend)

    def has_step_hooks(self) -> bool:
        """Whether a hook, of this optimizer or of all, runs with a step."""
        own = self._hooks
        return bool(own.get("step_pre") or own.get("step_post") or _everywhere["step_pre"] or _everywhere["step_post"])

    def step_hooks(self) -> dict[int, Hook]:
        """The hooks that run with a step by their number, of this optimizer and of all."""
        tables = (*(self._hooks.get(table, {}) for table in _everywhere), *_everywhere.values())
        return {number: hook for hooks in tables for number, hook in hooks.items()}

    def _register(self, table: str, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        need_callable(hook)
        return add_hook(self._hooks.setdefault(table, {}), hook, prepend)

    def _run_hooks(self, table: str, *state: Any) -> Any:
        """Call the hooks of a table with the optimizer and the state, if given; return the state that they leave."""
        for hook in list(self._hooks.get(table, {}).values()):
            made = hook(self, *state)
            if state and made is not None:
                state = (made,)
        return state[0] if state else None


check_methods(OptimizerHooks, but=("has_step_hooks",))  # which runs in every step


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> Handle:
    """Register a `register_step_pre_hook` of all optimizers; it runs before their own."""
    need_callable(hook)
    return add_hook(_everywhere["step_pre"], hook)


def register_optimizer_step_post_hook(hook: Callable[..., Any]) -> Handle:
    """Register a `register_step_post_hook` of all optimizers; it runs after their own."""
    need_callable(hook)
    return add_hook(_everywhere["step_post"], hook)


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
                given, kwargs = (given, kwargs) if made is None else _arguments(self, made)
            out = step(*given, **kwargs)
            for hook in [*self._hooks.get("step_post", {}).values(), *_everywhere["step_post"].values()]:
                hook(self, given, kwargs)
        finally:
            self._stepping = False
        return out

    return hooked


def _arguments(optimizer: Any, made: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    # The arguments for `step` that a hook returned.
    if not isinstance(made, tuple) or len(made) != 2:
        needs = "None or (args, kwargs) from a hook before the step"
        raise DTypeError(f"{type(optimizer).__name__}.step", needs, f"a {type(made).__name__}")
    return made


def counted(step: Callable[..., Any]) -> Callable[..., Any]:
    """A subclass's own `step`, each call of which counts as a step, unless it called `advance`, which counts it."""

    @wraps(step)
    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.calls
        out = step(self, *args, **kwargs)
        if self.calls == before:
            self._count(1)
        return out

    return counting
