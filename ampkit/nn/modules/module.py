"""Hooks of all modules, under the names of `torch.nn.modules.module`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit.core.autograd.hooks import Handle

from .. import hooks
from ..module import Module

__all__ = [
    "Module", "register_module_backward_hook", "register_module_buffer_registration_hook",
    "register_module_forward_hook", "register_module_forward_pre_hook", "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook", "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]  # fmt: skip


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> Handle:
    """Call `hook(module, args)` before the forward of every module, before the module's own hooks."""
    return hooks.register(None, "_forward_pre_hooks", hook)


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> Handle:
    """Call `hook(module, args, output)` after the forward of every module, before the module's own hooks."""
    return hooks.register(None, "_forward_hooks", hook, False, with_kwargs, always_call)


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> Handle:
    """Call `hook(module, grad_output)` before the backward of every module."""
    return hooks.register(None, "_backward_pre_hooks", hook)


def register_module_full_backward_hook(hook: Callable[..., Any]) -> Handle:
    """Call `hook(module, grad_input, grad_output)` after the backward of every module."""
    return hooks.register(None, "_backward_hooks", hook)


register_module_backward_hook = register_module_full_backward_hook  # see Module.register_backward_hook


def register_module_parameter_registration_hook(hook: Callable[..., Any]) -> Handle:
    """Call `hook(module, name, parameter)` where any module gets a Parameter; a result other than None replaces it."""
    return hooks.register_of_members("_parameters", hook)


def register_module_buffer_registration_hook(hook: Callable[..., Any]) -> Handle:
    """Call `hook(module, name, buffer)` where any module gets a buffer; a result other than None replaces it."""
    return hooks.register_of_members("_buffers", hook)


def register_module_module_registration_hook(hook: Callable[..., Any]) -> Handle:
    """Call `hook(module, name, submodule)` where any module gets a module; a result other than None replaces it."""
    return hooks.register_of_members("_modules", hook)
