"""Old names of `torch.autograd`, and what libraries call of its engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.errors import StateError
from ...core.autograd.hooks import passes
from ...core.tensor import Tensor

__all__ = ["Variable"]


class _Engine:
    """The engine of backward passes, as libraries that train on several devices know it."""

    @staticmethod
    def queue_callback(callback: Callable[[], Any]) -> None:
        """Call `callback()` at the end of the outermost backward pass. Raises StateError where none is under way."""
        if not passes.running:
            raise StateError("queue_callback", "a backward pass under way", "none", "call it from a hook or a backward")
        passes.at_end.append(callback)


class Variable(Tensor):
    """A tensor itself, as in PyTorch since 0.4."""

    _execution_engine = _Engine()

    def __new__(cls, data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Any:
        return data.requires_grad_() if requires_grad else data
