"""Recompute: a stretch of the forward that saves nothing but its arguments, and runs again when backward comes by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array
from . import policy, random
from .dtypes import DType, is_float
from .errors import StateError
from .tape import Node, Sweep, alias, attach, enable_grad, is_grad_enabled, no_grad, several, target
from .tensor import Tensor


class _Taped(NamedTuple):
    array: Array
    edge: Any


class _Recompute:
    """The op of `recompute`: its backward runs the function again and hands the gradients on to the fresh nodes."""

    name = "recompute"

    def vjp(self, node: Node, dys: list[Any], sweep: Sweep) -> tuple[Any, ...]:
        function, args, region, state = node.saved
        if any(version[0] > node.serial for version in node.versions):
            what, cure = "an argument of recompute that changed in place since", "change it after backward"
            raise StateError("backward", "the values that the forward read", what, cure)
        after, token = random.get_rng_state(), policy.enter(region)
        try:
            random.set_rng_state(state)
            with enable_grad():
                outs = several(function(*(_again(arg) for arg in args)))
        finally:
            policy.leave(token)
            random.set_rng_state(after)
        for out, dy in zip(outs, dys, strict=True):
            if dy is not None and out.edge is not None:
                sweep.add(*target(out), dy, sweep.tag)
        return ()

    replay = vjp

    def needs(self, node: Node) -> tuple[DType | None, ...]:
        return ()


def _again(arg: Any) -> Any:
    return alias(*arg) if isinstance(arg, _Taped) else arg


_RECOMPUTE = _Recompute()


def recompute(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` without keeping what its operations save: backward runs it again.

    It runs the second time in the same autocast region and with the same random numbers. Parameters that `function`
    reaches by itself get their gradients too. Backward raises StateError if an argument was changed in place since.
    Trades one more forward for memory (Chen et al. 2016, arXiv:1604.06174).
    """
    state, region = random.get_rng_state(), policy.region()
    if not is_grad_enabled():
        return function(*args)
    with no_grad():
        outs = function(*args)
    kept = tuple(_Taped(arg.array, arg.edge) if isinstance(arg, Tensor) and not arg.is_leaf else arg for arg in args)
    given = several(outs)
    versions = [arg.version for arg in args if isinstance(arg, Tensor)]
    node = Node(_RECOMPUTE, (), (function, kept, region, state), versions=versions)
    node.outputs = tuple((o.array.shape, o.array.dtype) for o in given)
    taped = tuple(attach(o.array, node, i) if is_float(o.dtype) else o for i, o in enumerate(given))
    return taped[0] if isinstance(outs, Tensor) else taped
