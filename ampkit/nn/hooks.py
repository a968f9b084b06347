"""Hooks: functions that run before or after a module's forward, or while a backward passes it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from ..autograd.function import Function
from ..base.errors import ArgumentError, DTypeError
from ..core.autograd.hooks import Handle
from ..core.nested import tensors_in, with_tensors
from ..core.tensor import Tensor

# By order of registration: the function, and whether it takes kwargs.
Hooks = dict[int, tuple[Callable[..., Any], bool]]
_Gradients = tuple[Any, ...]
_serial = count().__next__


def register(module: Any, hooks: Hooks, hook: Callable[..., Any], with_kwargs: bool, prepend: bool) -> Handle:
    """Add a hook, last or, with `prepend`, first. Raises DTypeError for something that cannot be called."""
    if not callable(hook):
        raise DTypeError("hook", "a callable", f"a {type(hook).__name__}")
    key, module._hooked = _serial(), True
    later = dict(hooks) if prepend else {}
    if prepend:
        hooks.clear()
    hooks[key] = (hook, with_kwargs)
    hooks.update(later)
    return Handle(hooks, key)


def looks_at(module: Any) -> bool:
    """Whether a hook runs when `module` is called, or in the backward of a call."""
    kinds = module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks
    return any(kinds)


def call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`module.forward` between the module's hooks."""
    for hook, with_kwargs in list(module._forward_pre_hooks.values()):
        found = hook(module, args, kwargs) if with_kwargs else hook(module, args)
        if found is not None and with_kwargs:
            args, kwargs = _both(module, found)
        elif found is not None:
            args = found if isinstance(found, tuple) else (found,)
    passing = _Passing(module) if module._backward_hooks or module._backward_pre_hooks else None
    out = module.forward(*(args if passing is None else passing.before(args)), **kwargs)
    for hook, with_kwargs in list(module._forward_hooks.values()):
        found = hook(module, args, kwargs, out) if with_kwargs else hook(module, args, out)
        out = out if found is None else found
    return out if passing is None else passing.behind(out)


def _both(module: Any, found: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], dict):
        needs = "None or (args, kwargs) from a forward pre-hook with_kwargs"
        raise DTypeError(type(module).__name__, needs, f"a {type(found).__name__}")
    args, kwargs = found
    return args if isinstance(args, tuple) else (args,), kwargs


class _Passing:
    """What a backward does where it enters and where it leaves one call of a module.

    Tensors are counted by their places among the positional arguments and in the tuple of outputs.
    """

    def __init__(self, module: Any):
        self.module, self.places, self.tells = module, 0, False
        self.grad_output: _Gradients = ()

    def before(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments, as the module gets them."""
        self.places, self.tells = len(args), any(isinstance(a, Tensor) and a.requires_grad for a in args)
        return _through(args, self.leave) if self.tells else args

    def behind(self, out: Any) -> Any:
        """The output, as whoever called the module gets it."""
        if isinstance(out, tuple):
            found = _through(out, self.enter)
            return type(out)(*found) if hasattr(out, "_fields") else found
        return with_tensors(out, iter(_through(tuple(tensors_in(out)), self.enter)))

    def enter(self, grad_output: _Gradients) -> _Gradients:
        """The gradients of the outputs, as they go into the module."""
        for hook, _ in list(self.module._backward_pre_hooks.values()):
            grad_output = _replaced("full backward pre-hook", hook(self.module, grad_output), grad_output)
        self.grad_output = grad_output
        if not self.tells:
            self.leave((None,) * self.places)
        return grad_output

    def leave(self, grad_input: _Gradients) -> _Gradients:
        """The gradients of the arguments, as they come out of it."""
        for hook, _ in list(self.module._backward_hooks.values()):
            found = hook(self.module, grad_input, self.grad_output)
            grad_input = _replaced("full backward hook", found, grad_input)
        return grad_input


def _through(values: tuple[Any, ...], passes: Callable[[_Gradients], _Gradients]) -> tuple[Any, ...]:
    # The same, whose gradients `passes` gets, None for what is no Tensor.
    at, made = [i for i, value in enumerate(values) if isinstance(value, Tensor)], list(values)

    def told(found: _Gradients) -> _Gradients:
        gradients = dict(zip(at, found, strict=True))
        answer = passes(tuple([gradients.get(i) for i in range(len(values))]))
        return tuple([answer[i] for i in at])

    for i, tensor in zip(at, BackwardHook.apply(told, *[values[i] for i in at]), strict=True):
        made[i] = tensor
    return tuple(made)


def _replaced(where: str, found: Any, held: _Gradients) -> _Gradients:
    if found is None:
        return held
    new = found if isinstance(found, tuple) else (found,)
    if len(new) != len(held):
        raise ArgumentError(where, f"None or {len(held)} gradients from the hook", str(len(new)))
    for item in new:
        if item is not None and not isinstance(item, Tensor):
            raise DTypeError(where, "Tensors or None from the hook", f"a {type(item).__name__}")
    return new


class BackwardHook(Function):
    """Tensors, unchanged; a backward that comes through calls `told` with the gradients, and takes its answer."""

    @staticmethod
    def forward(ctx: Any, told: Callable[[_Gradients], _Gradients], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.told = told
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> _Gradients:
        return (None, *ctx.told(gradients))
