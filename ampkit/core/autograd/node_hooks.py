"""Hooks around the backward of a node, which see the gradients of all its outputs and of all its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ampkit.base.errors import ArgumentError

from ..tensor import Tensor
from .hooks import Handle, add_hook, checked_result, need_callable


class NodeHooks:
    """The hooks of one node, in the order of their registration: before its backward, and after it."""

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before: dict[int, Callable[[Any], Any]] = {}
        self.after: dict[int, Callable[[Any, Any], Any]] = {}


def add_before(hooks: NodeHooks, hook: Callable[[tuple[Tensor | None, ...]], Any]) -> Handle:
    """Call `hook(grad_outputs)` where the node's backward runs, after the hooks of the tensors that the node made.

    grad_outputs: one gradient per output, None where none came. What it returns, if anything, replaces them: a tuple,
    or one Tensor, of the same shapes and dtypes. Raises DTypeError for something that cannot be called.
    """
    need_callable(hook, "register_prehook")
    return add_hook(hooks.before, hook)


def add_after(hooks: NodeHooks, hook: Callable[..., Any]) -> Handle:
    """Call `hook(grad_inputs, grad_outputs)` once the node's backward has run.

    grad_inputs: one gradient per input, None where there is none. What it returns, if anything, replaces them: a tuple,
    or one Tensor, of the same shapes and dtypes. Raises DTypeError for something that cannot be called.
    """
    need_callable(hook, "register_hook")
    return add_hook(hooks.after, hook)


def run_before(hooks: NodeHooks, dys: list[Any]) -> None:
    """Call the hooks on the gradients of a node's outputs, arrays or traced arrays, and put their results in place."""
    for hook in list(hooks.before.values()):
        _put(hook(_tensors(dys)), dys, "register_prehook")


def run_after(hooks: NodeHooks, gradients: list[Any], dys: Sequence[Any]) -> None:
    """Call the hooks on the gradients of a node's inputs, and put their results in place."""
    given = _tensors(dys)
    for hook in list(hooks.after.values()):
        _put(hook(_tensors(gradients), given), gradients, "register_hook")


def _tensors(gradients: Sequence[Any]) -> tuple[Tensor | None, ...]:
    return tuple([g if g is None else g.tensor if hasattr(g, "tensor") else Tensor(g) for g in gradients])


def _put(found: Any, gradients: list[Any], where: str) -> None:
    if found is None:
        return
    new = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    if len(new) != len(gradients):
        raise ArgumentError(where, f"{len(gradients)} gradients, or None, from the hook", f"{len(new)}")
    for place, (gradient, one) in enumerate(zip(gradients, new, strict=True)):
        if gradient is None and one is not None:
            raise ArgumentError(where, f"None in place {place}, where no gradient came", type(one).__name__)
        if gradient is not None and one is not None:
            made = checked_result(one, gradient, where)
            gradients[place] = type(gradient)(made) if hasattr(gradient, "tensor") else made.array
        else:
            gradients[place] = None
