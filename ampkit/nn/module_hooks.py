"""ModuleHooks: registration of the functions that run around a module's call, and around saving and loading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.autograd.hooks import Handle, add_hook, need_callable
from ..ops.argument_checks import check_methods
from . import hooks
from .module_tree import ModuleTree


class ModuleHooks(ModuleTree):
    """The methods of Module that register hooks."""

    # around a call

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> Handle:
        """Call `hook(module, args)` before `forward`; a result other than None replaces the arguments.

        with_kwargs=True calls `hook(module, args, kwargs)`, which returns both or None.
        """
        return hooks.register(self, "_forward_pre_hooks", hook, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> Handle:
        """Call `hook(module, args, output)` after `forward`; a result other than None replaces the output.

        with_kwargs=True calls `hook(module, args, kwargs, output)`. always_call=True calls it after an error too, with
        None as the output.
        """
        return hooks.register(self, "_forward_hooks", hook, prepend, with_kwargs, always_call)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Call `hook(module, grad_output)` in the backward before that of this module.

        grad_output: a tuple of the gradients of the outputs, None for one without. A result other than None replaces
        it: a tuple of the same length, or the only gradient.
        """
        return hooks.register(self, "_backward_pre_hooks", hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Call `hook(module, grad_input, grad_output)` in the backward after that of this module.

        grad_input: a tuple of the gradients of the positional arguments, None for one without; if none of them requires
        grad, all are None and the hook is called with grad_output available. A result other than None replaces
        grad_input: a tuple of the same length, or the only gradient.
        """
        return hooks.register(self, "_backward_hooks", hook, prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> Handle:
        """Register a `register_full_backward_hook`, under the name of a hook that PyTorch means to drop.

        That one saw only the gradients of the last operation of a module.
        """
        return self.register_full_backward_hook(hook)

    # around saving and loading

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook(module, prefix, keep_vars)` before `state_dict` saves this module."""
        return self._add_state_hook("save_pre", hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook(module, state_dict, prefix, local_metadata)` after `state_dict` saved this module and those below.

        It may change state_dict, and local_metadata, what its `_metadata` has of this module: {"version": ...}.
        """
        return self._add_state_hook("save", lambda *given: _nothing(hook(*given)), hook)

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> Handle:
        # As register_state_dict_post_hook; a result other than None takes the place of state_dict.
        return self._add_state_hook("save", hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)`
        before `load_state_dict` reads this module.

        It may change state_dict, a copy of the caller's dict, in place, and add to the lists.
        """
        return self._add_state_hook("load_pre", hook)

    def _register_load_state_dict_pre_hook(self, hook: Callable[..., Any], with_module: bool = False) -> Handle:
        # As register_load_state_dict_pre_hook, called without the module.
        return self._add_state_hook("load_pre", hook if with_module else lambda module, *given: hook(*given), hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook(module, incompatible_keys)` after `load_state_dict` loaded this module.

        It may remove names from the lists incompatible_keys.missing_keys and .unexpected_keys, so that they raise
        nothing. A model with such a hook is loaded even where the names that are left raise.
        """
        return self._add_state_hook("load", hook)

    def _add_state_hook(self, when: str, call: Callable[..., Any], hook: Any = None) -> Handle:
        need_callable(call if hook is None else hook)
        return add_hook(self.__dict__.setdefault("_state_hooks", {}).setdefault(when, {}), call)

    def run_state_hooks(self, when: str, *given: Any) -> Any:
        """Call the hooks of one kind; returns the last result that is not None."""
        result = None
        for hook in list(self.__dict__.get("_state_hooks", {}).get(when, {}).values()):
            found = hook(self, *given)
            result = result if found is None else found
        return result


check_methods(ModuleHooks, but=["run_state_hooks"])


def _nothing(result: Any) -> None:
    return None
