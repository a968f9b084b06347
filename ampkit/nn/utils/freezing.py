"""Freeze parts of a model, for fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable

from ampkit.base.errors import DTypeError
from ampkit.core.arguments import type_name

from ..module import Module
from ..module_names import is_below, need_matches
from ..modules.norm import _BatchNorm


def freeze(model: Module, *patterns: str) -> Module:
    """Set requires_grad=False for the modules and parameters that `patterns` name, and all below; returns the model.

    A pattern is a path as in `named_modules` or `named_parameters`, in which `*` stands for any one part: "layer1",
    "blocks.*.attn", "cls_token". Batch norms below stay in eval mode, also after `model.train()`: they use the running
    statistics that they have, and keep them. Dropout follows `model.train()` as before. An optimizer is to be given
    the parameters that are left: those with requires_grad.
    Raises ConfigError, with nothing changed, for a pattern that matches nothing; DTypeError for something that is no
    Module.
    """
    if not isinstance(model, Module):
        raise DTypeError("freeze", "a Module", type_name(type(model)))
    names = [name for name, _ in model.named_parameters()]
    paths = [path for path, _ in model.named_modules() if path]
    need_matches("freeze", "the path of a module or parameter of the model", patterns, [*paths, *names])
    for name, parameter in model.named_parameters():
        if any(is_below(pattern, name) for pattern in patterns):
            parameter.requires_grad = False
    keep_in_eval(module for path, module in model.named_modules() if any(is_below(p, path) for p in patterns))
    return model


def keep_in_eval(modules: Iterable[Module]) -> None:
    """Let those of `modules` that are batch norms stay in eval mode."""
    for module in modules:
        if isinstance(module, _BatchNorm):
            module._stays_in_eval = True
            module.eval()
