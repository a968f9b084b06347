"""The names of `torch.func`: a module called with other tensors, and derivatives of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ampkit.base.errors import DTypeError, StateError
from ampkit.core.arguments import shown
from ampkit.core.autograd.grad_mode import enable_grad
from ampkit.core.autograd.tape import grad as _grad
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_all

from ..module import Module
from ..state_dict import look_up

__all__ = ["functional_call", "grad", "grad_and_value"]


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
    replaces. Raises ArgumentError for an unknown name and, with `strict`, StateError where one is missing.
    """
    dicts = parameter_and_buffer_dicts
    for name in kwargs or ():
        if not isinstance(name, str):
            raise DTypeError("functional_call", "kwargs with names of arguments as keys", shown(name))
    given = dict(dicts) if isinstance(dicts, Mapping) else {k: v for each in dicts for k, v in each.items()}
    own: dict[str, Any] = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    for name in given:
        look_up(own, name, "Parameter or buffer")
    if strict and (missing := [name for name in own if name not in given]):
        raise StateError("functional_call", "a tensor for each name", f"none for {', '.join(missing)}")
    if tie_weights:
        tied = {id(own[name]): tensor for name, tensor in given.items()}
        given |= {n: tied[id(t)] for n, t in own.items() if n not in given and id(t) in tied}
    places = [(_table(module, name), name) for name in given]
    try:
        for table, name in places:
            table[name.rpartition(".")[2]] = given[name]
        return module(*(args if isinstance(args, tuple) else () if args is None else (args,)), **(kwargs or {}))
    finally:
        for table, name in places:
            table[name.rpartition(".")[2]] = own[name]


def _table(module: Module, name: str) -> dict[str, Any]:
    path, _, last = name.rpartition(".")
    part: Any = module.get_submodule(path)
    return part._parameters if last in part._parameters else part._buffers


def grad_and_value(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Any:
    """A function that returns the gradient of `func` for its arguments `argnums`, and its value.

    func returns a tensor of one element; with has_aux, that and any value, which is returned with the value.
    Its gradients can be differentiated again.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def derived(*args: Any, **kwargs: Any) -> Any:
        for n in numbers:
            if not -len(args) <= n < len(args) or not isinstance(args[n], Tensor):
                raise DTypeError("grad", f"a Tensor as argument {n}", shown(args[n : n + 1]))
        with enable_grad():
            inputs = {n: args[n] if args[n].requires_grad else args[n].detach().requires_grad_() for n in numbers}
            out = func(*[inputs.get(n, value) for n, value in enumerate(args)], **kwargs)
            value = out[0] if has_aux else out
            found = _grad(value, list(inputs.values()), create_graph=any(args[n].requires_grad for n in numbers))
        return (found[0] if isinstance(argnums, int) else tuple(found)), (out if has_aux else value.detach())

    return derived


def grad(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Any:
    """A function that returns the gradient of `func`; with has_aux, that and func's second value."""
    both = grad_and_value(func, argnums, has_aux)

    def derived(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return derived


check_all(globals())
