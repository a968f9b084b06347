"""`functional_call`: a module called with other tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ampkit.base.errors import ArgumentError, DTypeError, StateError
from ampkit.core.arguments import shown
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_all

from ..module import Module
from ..state_dict import look_up

__all__ = ["functional_call"]


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """`module(*args, **kwargs)` with other tensors in the place of its Parameters and buffers of these dotted names.

    Gradients flow to the tensors given. tie_weights: a tensor also takes the place of those tied to the one it
    replaces. Raises ArgumentError for an unknown name, and with tie_weights for several tensors in the place of one;
    with `strict`, StateError where one is missing.
    """
    dicts = parameter_and_buffer_dicts
    for name in kwargs or ():
        if not isinstance(name, str):
            raise DTypeError("functional_call", "kwargs with names of arguments as keys", shown(name))
    given = dict(dicts) if isinstance(dicts, Mapping) else {k: v for each in dicts for k, v in each.items()}
    tables = _tables(module)
    own = {name: table[last] for name, (table, last) in tables.items()}
    for name in given:
        look_up(own, name, "Parameter or buffer")
    if tie_weights:
        tied: dict[int, Tensor] = {}
        for name, tensor in given.items():
            if tied.setdefault(id(own[name]), tensor) is not tensor:
                needs = f"one tensor for {name} and what is tied to it"
                raise ArgumentError("functional_call", needs, "several", "pass one, or tie_weights=False")
        given |= {n: tied[id(t)] for n, t in own.items() if n not in given and id(t) in tied}
    if strict and (missing := [name for name in own if name not in given]):
        raise StateError("functional_call", "a tensor for each name", f"none for {', '.join(missing)}")
    try:
        for name, tensor in given.items():
            table, last = tables[name]
            table[last] = tensor
        return module(*(args if isinstance(args, tuple) else () if args is None else (args,)), **(kwargs or {}))
    finally:
        for name in given:
            table, last = tables[name]
            table[last] = own[name]


def _tables(module: Module) -> dict[str, tuple[dict[str, Any], str]]:
    # Of each Parameter, and then of each buffer, by dotted name: the table that holds it and its name there.
    parts = list(module.named_modules(remove_duplicate=False))
    found: dict[str, tuple[dict[str, Any], str]] = {}
    for kind in ("_parameters", "_buffers"):
        for path, part in parts:
            table = getattr(part, kind)
            found |= {f"{path}.{n}" if path else n: (table, n) for n, tensor in table.items() if tensor is not None}
    return found


check_all(globals())
