"""Hooks: functions that run before or after the forward or the backward of a module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..autograd.function import Function
from ..base.errors import ArgumentError, DTypeError
from ..core.autograd.hooks import Handle, add_hook, need_callable
from ..core.capture.recorder import recorders
from ..core.nested import tensors_in, with_tensors
from ..core.tensor import Tensor

TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")  # of a Module
# By registration number, the functions, as libraries for PyTorch read them; and of those that were registered with
# options, under OPTIONS: (whether it takes kwargs, whether it is called after an error too).
OPTIONS = "_hook_options"
everywhere: dict[str, dict[int, Any]] = {}  # the hooks of all modules, by table; empty without any, as each call asks
# Functions of (module, name, value) that run where a module gets one: by its table, then by registration number.
registration: dict[str, dict[int, Callable[..., Any]]] = {"_parameters": {}, "_buffers": {}, "_modules": {}}
_Gradients = tuple[Any, ...]


def register(
    module: Any,
    table: str,
    hook: Callable[..., Any],
    prepend: bool = False,
    with_kwargs: bool = False,
    always: bool = False,
) -> Handle:
    """Add a hook to a table of `module`, or of all modules for None; last or, with `prepend`, first.

    Raises DTypeError if it is not callable.
    """
    need_callable(hook)
    tables = everywhere if module is None else module.__dict__
    if module is not None:
        module._has_own_hooks = True
    handle = add_hook(tables.setdefault(table, {}), hook, prepend)
    if with_kwargs or always:
        tables.setdefault(OPTIONS, {})[handle.id] = (with_kwargs, always)
    return handle


def register_of_members(table: str, hook: Callable[..., Any]) -> Handle:
    """Add a hook that runs where a module gets a member of that table. Raises DTypeError if it is not callable."""
    need_callable(hook)
    return add_hook(registration[table], hook)


def registered(module: Any, table: str, name: str, value: Any) -> Any:
    """`value` as the hooks leave it, before it becomes the member `name` of `module`."""
    for hook in list(registration[table].values()):
        made = hook(module, name, value)
        value = value if made is None else made
    return value


def has_hooks(module: Any) -> bool:
    """Whether a forward or backward hook of `module`, or of all modules, is to be called."""
    return any(module.__dict__[table] or everywhere.get(table) for table in TABLES)


def _hooks(module: Any, table: str) -> list[tuple[Callable[..., Any], bool, bool]]:
    found = []
    for tables in (everywhere, module.__dict__):
        options = tables.get(OPTIONS, {})
        found += [(hook, *options.get(number, (False, False))) for number, hook in tables.get(table, {}).items()]
    return found


def numbers(module: Any) -> tuple[int, ...]:
    """The registration numbers of the hooks around calls of `module`, those of all modules too."""
    if not module._has_own_hooks and not everywhere:
        return ()
    return tuple([n for table in TABLES for n in (*everywhere.get(table, ()), *module.__dict__[table])])


def call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the pre-hooks, `module.forward` and the hooks."""
    for recorder in recorders:
        recorder.ran(module)
    called: set[int] = set()
    try:
        return _call(module, args, kwargs, called)
    except Exception:
        for i, (hook, with_kwargs, always) in enumerate(_hooks(module, "_forward_hooks")):
            if always and i not in called:
                with suppress(Exception):  # the first error is the one to see
                    hook(module, args, kwargs, None) if with_kwargs else hook(module, args, None)
        raise


def _call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], called: set[int]) -> Any:
    for hook, with_kwargs, _ in _hooks(module, "_forward_pre_hooks"):
        found = hook(module, args, kwargs) if with_kwargs else hook(module, args)
        if found is not None and with_kwargs:
            args, kwargs = _both(module, found)
        elif found is not None:
            args = found if isinstance(found, tuple) else (found,)
    observed = _hooks(module, "_backward_hooks") or _hooks(module, "_backward_pre_hooks")
    backward = _BackwardHooks(module) if observed else None
    out = module.forward(*(args if backward is None else backward.wrap_inputs(args)), **kwargs)
    for i, (hook, with_kwargs, _) in enumerate(_hooks(module, "_forward_hooks")):
        called.add(i)
        found = hook(module, args, kwargs, out) if with_kwargs else hook(module, args, out)
        out = out if found is None else found
    return out if backward is None else backward.wrap_outputs(out)


def _both(module: Any, found: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], dict):
        needs = "None or (args, kwargs) from a forward pre-hook with_kwargs"
        raise DTypeError(type(module).__name__, needs, f"a {type(found).__name__}")
    args, kwargs = found
    return args if isinstance(args, tuple) else (args,), kwargs


class _BackwardHooks:
    """The backward hooks of one call of a module.

    Gradients are ordered as the positional arguments and as the tuple of outputs.
    """

    def __init__(self, module: Any):
        self.module, self.inputs, self.has_grad_input = module, 0, False
        self.grad_output: _Gradients | None = None  # from the pre-hooks of a backward pass until its hooks

    def wrap_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments for the module; its backward hooks run when their gradients are computed."""
        self.inputs = len(args)
        self.has_grad_input = any(isinstance(a, Tensor) and a.requires_grad for a in args)
        return _with_hook(args, self.run_hooks) if self.has_grad_input else args

    def wrap_outputs(self, out: Any) -> Any:
        """The output for the caller; the backward pre-hooks run when its gradients are computed."""
        if isinstance(out, tuple):
            wrapped = _with_hook(out, self.run_pre_hooks)
            return type(out)(*wrapped) if hasattr(out, "_fields") else wrapped
        return with_tensors(out, iter(_with_hook(tuple(tensors_in(out)), self.run_pre_hooks)))

    def run_pre_hooks(self, grad_output: _Gradients) -> _Gradients:
        """The gradients of the outputs after the pre-hooks."""
        for hook, *_ in _hooks(self.module, "_backward_pre_hooks"):
            grad_output = _replaced("full backward pre-hook", hook(self.module, grad_output), grad_output)
        self.grad_output = grad_output
        if not self.has_grad_input:
            self.run_hooks((None,) * self.inputs)
        return grad_output

    def run_hooks(self, grad_input: _Gradients) -> _Gradients:
        """The gradients of the arguments after the hooks.

        Second derivatives reach the arguments by another way than the outputs: then no hook is called.
        """
        if self.grad_output is None:
            return grad_input
        for hook, *_ in _hooks(self.module, "_backward_hooks"):
            found = hook(self.module, grad_input, self.grad_output)
            grad_input = _replaced("full backward hook", found, grad_input)
        self.grad_output = None
        return grad_input


def _with_hook(values: tuple[Any, ...], hook: Callable[[_Gradients], _Gradients]) -> tuple[Any, ...]:
    # The values, with `hook` called on their gradients in the backward; None for those that require none.
    at = [i for i, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]
    if not at:
        return values
    wrapped = list(values)

    def run(tensor_grads: _Gradients) -> _Gradients:
        gradients = dict(zip(at, tensor_grads, strict=True))
        replaced = hook(tuple([gradients.get(i) for i in range(len(values))]))
        return tuple([replaced[i] for i in at])

    for i, tensor in zip(at, BackwardHook.apply(run, *[values[i] for i in at]), strict=True):
        wrapped[i] = tensor
    return tuple(wrapped)


def _replaced(where: str, result: Any, gradients: _Gradients) -> _Gradients:
    # The gradients that a hook returned, checked; the old ones for None.
    if result is None:
        return gradients
    new = result if isinstance(result, tuple) else (result,)
    if len(new) != len(gradients):
        raise ArgumentError(where, f"None or {len(gradients)} gradients from the hook", str(len(new)))
    for item in new:
        if item is not None and not isinstance(item, Tensor):
            raise DTypeError(where, "Tensors or None from the hook", f"a {type(item).__name__}")
    return new


class BackwardHook(Function):
    """The identity on tensors, whose backward calls `run` on the gradients and returns its result."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[_Gradients], _Gradients], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> _Gradients:
        return (None, *ctx.run(gradients))
