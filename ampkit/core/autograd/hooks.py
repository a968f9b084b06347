"""Hooks on gradients: functions that read or replace the gradient of one tensor during backward."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from ampkit.base import observe
from ampkit.base.errors import DTypeError, ShapeError, StateError

from ..tensor import Tensor
from .scale_tag import ScaleTag

if TYPE_CHECKING:
    from .accumulate_grad import AccumulateGrad
    from .backward_pass import BackwardPass
    from .node import Node
    from .node_hooks import NodeHooks

# By order of registration: the output index of the node, and the function of (gradient, scale tag).
Hooks = dict[int, tuple[int, Callable[[Tensor, Any], Any]]]
# The ids of the leaves that have hooks on their gradient, and hooks that run once it is written.
leaf_hooks: set[int] = set()
post_accumulate_hooks: set[int] = set()
_hooked: set[int] = set()  # of all leaves that have LeafHooks


class LeafHooks:
    """The hooks of a leaf, held by the leaf alone: so a hook that refers to it is freed with it, by the collector.

    gradient: on its gradient. post_accumulate: that run once it is written. accumulate_grad: its AccumulateGrad.
    around: the hooks of that.
    """

    __slots__ = ("accumulate_grad", "around", "gradient", "post_accumulate")

    def __init__(self) -> None:
        self.gradient: Hooks = {}
        self.post_accumulate: dict[int, Callable[[Tensor], Any]] = {}
        self.accumulate_grad: AccumulateGrad | None = None
        self.around: NodeHooks | None = None


class Passes(threading.local):
    """The backward passes of a thread. running: those under way, each called by what the one before it runs.

    at_end: what hooks have left to do at the end of the outermost.
    """

    def __init__(self) -> None:
        self.running: list[BackwardPass] = []
        self.at_end: list[Callable[[], None]] = []


passes = Passes()
_serial = count().__next__
_LAST = 2**62  # retain_grad runs after all other hooks, and keeps what they returned


class Handle:
    """A registered hook, which `remove()` unregisters. id: its key in its table of hooks."""

    def __init__(self, hooks: dict[int, Any], key: int):
        self._hooks, self.id = hooks, key

    def remove(self) -> None:
        """Unregister the hook; a second call does nothing."""
        self._hooks.pop(self.id, None)

    def hooks_dict_ref(self) -> dict[int, Any]:
        """The table of hooks that holds this one, by `id`."""
        return self._hooks

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def need_callable(hook: Any, where: str = "hook") -> None:
    """Raise DTypeError unless `hook` can be called."""
    if not callable(hook):
        raise DTypeError(where, "a callable", f"a {type(hook).__name__}")


def add_hook(hooks: dict[int, Any], hook: Any, prepend: bool = False) -> Handle:
    """Add an entry to a table of hooks, which run in its order: last or, with `prepend`, first."""
    key, later = _serial(), dict(hooks) if prepend else {}
    if prepend:
        hooks.clear()
    hooks[key] = hook
    hooks.update(later)
    return Handle(hooks, key)


def register_hook(tensor: Tensor, hook: Callable[[Tensor], Any]) -> Handle:
    """Call `hook(gradient)` in every backward, once the whole gradient of `tensor` is there.

    What it returns, if anything, replaces the gradient: a Tensor of its shape and dtype. A hook on a leaf is called
    also for what `ampkit.grad` returns, and where the graph has recomputed functions, whose operations are not known
    before they run again, at the end of the backward pass. The gradient of a Parameter is float32 (float64 for one of
    float64), and multiplied by the loss scale if the loss was scaled. It must not be changed in place.
    Raises StateError for a tensor that requires no grad, DTypeError for something that cannot be called.
    """
    need_callable(hook, "register_hook")
    return _add(tensor, lambda gradient, tag: hook(gradient))


def register_post_accumulate_grad_hook(leaf: Tensor, hook: Callable[[Tensor], None]) -> Handle:
    """Call `hook(leaf)` in every backward that writes `leaf.grad`, as soon as that is complete.

    Where the graph has recomputed functions, that is at the end of the backward pass.
    Raises StateError for anything but a leaf that requires grad, and in backward for a hook that returns something,
    DTypeError for something that cannot be called.
    """
    where = "register_post_accumulate_grad_hook"
    need_callable(hook, where)
    if leaf._tape_edge is None or not leaf.is_leaf:
        got = "the result of an operation" if leaf._tape_edge is not None else "a tensor that does not"
        raise StateError(where, "a leaf that requires grad", got)
    post_accumulate_hooks.add(id(leaf))
    return add_hook(hooks_of(leaf).post_accumulate, hook)


def run_post_accumulate_hooks(leaf: Tensor) -> None:
    """Call the hooks of a leaf whose gradient is written."""
    for hook in list(hooks_of(leaf).post_accumulate.values()):
        if (found := hook(leaf)) is not None:
            got, cure = f"a {type(found).__name__}", "change leaf.grad in place, or set it"
            raise StateError("register_post_accumulate_grad_hook", "a hook that returns None", got, cure)


def retain_grad(tensor: Tensor) -> None:
    """Leave the gradient in `.grad` as for a leaf, though `tensor` is the result of an operation."""
    if tensor.is_leaf:
        return
    held = weakref.ref(tensor)

    def keep(gradient: Tensor, tag: ScaleTag | None) -> None:
        if (owner := held()) is not None:
            owner.accumulate(gradient.array, tag)

    _add(tensor, keep, _LAST + id(tensor))


def move_retained(tensor: Tensor, before: Node) -> None:
    """Retain the gradient at the tensor's new place on the tape, if it was asked for at the output of `before`."""
    key = _LAST + id(tensor)
    if before.hooks is not None and key in before.hooks and tensor._tape_node is not None:
        _add(tensor, before.hooks.pop(key)[1], key)


def _add(tensor: Tensor, function: Callable[[Tensor, Any], Any], key: int | None = None) -> Handle:
    if tensor._tape_edge is None:
        raise StateError("register_hook", "a tensor that requires grad", "one that does not")
    node = tensor._tape_node
    if node is not None:
        hooks = node.hooks = {} if node.hooks is None else node.hooks
    else:
        hooks = hooks_of(tensor).gradient
        leaf_hooks.add(id(tensor))
    key = _serial() if key is None else key
    hooks[key] = (tensor._tape_edge[1], function)
    return Handle(hooks, key)


def hooks_of(leaf: Tensor) -> LeafHooks:
    """The hooks of a leaf."""
    if id(leaf) not in _hooked:
        leaf._hooks = LeafHooks()
        _hooked.add(id(leaf))
        weakref.finalize(leaf, _forget, id(leaf))
    return leaf._hooks


def registered(leaf: Tensor) -> dict[int, Callable[..., Any]]:
    """All hooks of a leaf by their number."""
    if id(leaf) not in _hooked:
        return {}
    held: LeafHooks = leaf._hooks
    around: dict[int, Callable[..., Any]]
    around = {} if held.around is None else {**held.around.before, **held.around.after}
    return {**{number: hook for number, (_, hook) in held.gradient.items()}, **held.post_accumulate, **around}


def _forget(key: int) -> None:
    for table in (_hooked, leaf_hooks, post_accumulate_hooks):
        table.discard(key)


def run(hooks: Hooks, gradients: list[Any], tag: object, of: Node | Tensor) -> None:
    """Call the hooks on the gradients of a node's outputs, or of a leaf, and put what they return in their place."""
    for _, (index, function) in sorted(hooks.items()):
        if (gradient := gradients[index]) is not None:
            traced = hasattr(gradient, "tensor")
            found = function(gradient.tensor if traced else Tensor(gradient), tag)
            if found is not None:
                new = checked_result(found, gradient)
                if observe.observers:
                    read = gradient.tensor.array if traced else gradient
                    what: Any = {"operands": (of,)} if isinstance(of, Tensor) else {"node": of}
                    observe.notify_end("hook", (read,), new.array, observe.HOOK, tag=tag, **what)
                gradients[index] = type(gradient)(new) if traced else new.array


def checked_result(found: Any, gradient: Any, where: str = "register_hook") -> Tensor:
    """What a hook returned in place of `gradient`. Raises ShapeError unless it is a Tensor of its shape and dtype."""
    if not isinstance(found, Tensor) or found.shape != gradient.shape or found.array.dtype != gradient.dtype:
        needs = f"a Tensor of shape {tuple(gradient.shape)} and dtype {gradient.dtype.name}, or None, from the hook"
        got = f"{tuple(found.shape)}, {found.dtype.name}" if isinstance(found, Tensor) else type(found).__name__
        raise ShapeError(where, needs, got)
    return found


for _method in (register_hook, retain_grad, register_post_accumulate_grad_hook):
    setattr(Tensor, _method.__name__, _method)
