"""AccumulateGrad: what ends a graph at a leaf, as scripts that read graphs expect it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..tensor import Tensor
from . import hooks
from .hooks import Handle
from .node_hooks import NodeHooks, add_after, add_before


class AccumulateGrad:
    """The step that adds a gradient to `.grad` of a leaf: the same object as long as the leaf is there.

    The backward pass writes to leaves itself. It only reads, by the leaf, the hooks that are registered here.
    """

    next_functions: tuple[()] = ()

    def __init__(self, leaf: Tensor):
        self._leaf = weakref.ref(leaf)
        self.metadata: dict[Any, Any] = {}

    @property
    def variable(self) -> Tensor | None:
        """The leaf; None once it is gone."""
        return self._leaf()

    def name(self) -> str:
        """Its name: AccumulateGrad."""
        return type(self).__name__

    def register_prehook(self, hook: Callable[[tuple[Tensor | None, ...]], Any]) -> Handle:
        """Call `hook((gradient,))` before a gradient is added to `.grad`: see `node_hooks.add_before`."""
        return add_before(self._hooks_around(), hook)

    def register_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook((), (gradient,))` once a gradient is added to `.grad`, after the leaf's own hooks for that.

        The gradient is that of this backward pass; where `.grad` was None before, it is `.grad` itself.
        """
        return add_after(self._hooks_around(), hook)

    def _hooks_around(self) -> NodeHooks:
        leaf = self._leaf()
        assert leaf is not None
        held = hooks.hooks_of(leaf)
        hooks.leaf_hooks.add(id(leaf))  # so that the pass adds up the gradient before it writes it
        if held.around is None:
            held.around = NodeHooks()
        return held.around

    def __repr__(self) -> str:
        return f"<{self.name()}>"


def accumulate_grad(leaf: Tensor) -> AccumulateGrad:
    """The AccumulateGrad of a leaf."""
    held = hooks.hooks_of(leaf)
    if held.accumulate_grad is None:
        held.accumulate_grad = AccumulateGrad(leaf)
    return held.accumulate_grad
