"""A norm before modules whose results grow until they overflow, as a cure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ... import ops as f
from ...core.module_path import starred
from ..origin import Origin
from .trial import Cure


def before_same_type(origin: Origin) -> list[Cure]:
    """A norm before each module like that which overflows, as in a residual stream that grows in every block.

    None where it did not overflow in a module of the model.
    """
    model = None if origin.call is None else origin.call.model
    modules: dict[str, Any] = {} if model is None else dict(model.named_modules())
    kind, place = type(modules.get(origin.path)), starred(origin.path)
    same: dict[str, Any] = {p: m for p, m in modules.items() if p and starred(p) == place and type(m) is kind}
    if not same:
        return []

    @contextmanager
    def normalized() -> Iterator[None]:
        hooks = [module.register_forward_pre_hook(_normalize_first) for module in same.values()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    return [Cure(f"normalize what goes into {_named(same)}: ops.layer_norm(x, x.shape[-1:])", normalized)]


def _named(modules: dict[str, Any]) -> str:
    """Modules of one type in words: those of an nn.Sequential have numbers for names, which need the type as well."""
    (path, module), *others = modules.items()
    shown = starred(path) if others else path
    if any(part.isidentifier() for part in shown.split(".")):
        return shown
    kind = type(module).__name__
    return f"each {kind} of the model" if others else f"{kind} {path}"


def _normalize_first(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (f.layer_norm(args[0], args[0].shape[-1:]), *args[1:])
