"""Activation checkpointing: a function that saves only its arguments, and runs again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from ampkit.base.dtypes import DType
from ampkit.base.errors import DTypeError, StateError

from .. import policy, random
from ..nested import tensors_in, with_tensors
from ..policy import delayed
from ..tensor import Tensor, tick
from .backward_pass import BackwardPass
from .grad_mode import enable_grad, is_grad_enabled, no_grad
from .node import Node, alias, attach
from .saved_hooks import pack, unpack
from .tape import target

_recomputing: ContextVar[bool] = ContextVar("ampkit.recompute", default=False)


def is_recomputing() -> bool:
    """Whether a recomputed function runs its second time, in backward: running statistics must then stay unchanged."""
    return _recomputing.get()


class _SavedTensor(NamedTuple):
    array: Any  # or Packed
    edge: Any


class _Recompute:
    """The op of `recompute`: its backward runs the function again and passes the gradients to the new nodes."""

    name = "recompute"
    extends_graph = True

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: BackwardPass) -> tuple[Any, ...]:
        if any(version[0] > node.serial for version in node.versions):
            raise _changed("an argument")
        since = tick()
        outs = _run_again(*node.saved)
        if [(o.array.shape, o.array.dtype) for o in outs] != list(node.outputs):
            cure = "it must compute the same again: what it reads besides its arguments must not change"
            raise StateError("recompute", "a function that returns tensors like its first run's", "others", cure)
        _need_unchanged(outs, node.serial, since)
        for out, dy in zip(outs, dys, strict=True):
            if dy is not None and out._tape_edge is not None:
                backward_pass.add(*target(out), dy, backward_pass.tag)
        return ()

    replay = vjp

    def needs(self, node: Node) -> tuple[DType | None, ...]:
        return ()


_RECOMPUTE = _Recompute()


def _run_again(
    function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], region: Any, state: Any, scales: Any
) -> list[Tensor]:
    after, token, mark = random.get_rng_state(), policy.enter(region), _recomputing.set(True)
    log = delayed.running.set(delayed.ScaleLog(None, scales))
    try:
        random.set_rng_state(state)
        named = {name: _rebuild_argument(arg) for name, arg in options.items()}
        with enable_grad():
            outs = function(*map(_rebuild_argument, args), **named)
    finally:
        delayed.running.reset(log)
        _recomputing.reset(mark)
        policy.leave(token)
        random.set_rng_state(after)
    return list(tensors_in(outs))


def _rebuild_argument(arg: Any) -> Any:
    return alias(unpack(arg.array), arg.edge) if isinstance(arg, _SavedTensor) else arg


def _save_argument(arg: Any) -> Any:
    if not isinstance(arg, Tensor) or arg.is_leaf:
        return arg
    return _SavedTensor(pack(arg.array, arg._version_counter), arg._tape_edge)


def _need_unchanged(outs: list[Tensor], recorded: int, since: int) -> None:
    # The second run has read the leaves as they are now; a change between the two runs would go unnoticed.
    todo, seen = [out._tape_node for out in outs if out._tape_node is not None], set()
    while todo:
        node = todo.pop()
        if node.serial < since or node in seen:
            continue
        seen.add(node)
        for edge, version in zip(node.edges, node.versions, strict=False):
            if edge is not None and not isinstance(edge[0], Node) and recorded < version[0] < since:
                name = getattr(edge[0], "_dotted_name", "")
                raise _changed(f"parameter {name!r}" if name else "a leaf")
        todo += [edge[0] for edge in node.edges if edge is not None and isinstance(edge[0], Node)]


def _changed(what: str) -> StateError:
    found, cure = f"{what} of recompute that changed in place since", "change it after backward"
    return StateError("backward", "the values that the forward read", found, cure)


def recompute(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """`function(*args, **options)` without keeping what its operations save: backward runs it again.

    It returns a Tensor, or a list, tuple or dict of Tensors and other things. It runs the second time in the same
    autocast region and with the same random numbers. Parameters that it reaches by itself get their gradients too.
    Raises DTypeError for anything that cannot be called; backward raises StateError if an argument or a leaf that it
    reads was changed in place since, or if it returns other shapes the second time.
    Trades one more forward for memory (Chen et al. 2016, arXiv:1604.06174).
    """
    if not callable(function):
        raise DTypeError("recompute", "a function and its arguments", f"a {type(function).__name__}")
    state, region = random.get_rng_state(), policy.region()
    if not is_grad_enabled():
        return function(*args, **options)
    log = delayed.ScaleLog(delayed.running.get())
    token = delayed.running.set(log)
    try:
        with no_grad():
            outs = function(*args, **options)
    finally:
        delayed.running.reset(token)
    given = list(tensors_in(outs))
    kept = tuple(map(_save_argument, args)), {name: _save_argument(arg) for name, arg in options.items()}
    versions = [arg._version_counter for arg in (*args, *options.values()) if isinstance(arg, Tensor)]
    node = Node(_RECOMPUTE, (), (function, *kept, region, state, log.scales), versions=versions)
    node.outputs = tuple((o.array.shape, o.array.dtype) for o in given)
    made = [attach(o.array, node, i) if o.is_floating_point() else o for i, o in enumerate(given)]
    return with_tensors(outs, iter(made))
