"""Old names of `torch.autograd`, and what libraries call of its engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....base.errors import StateError
from ....base.scoped import Scope, ScopedVariable
from ....core.autograd.hooks import passes
from ....core.dispatch import overrides
from ....core.tensor import Tensor
from ....core.tensor_base import TensorType


class _Engine:
    """The engine of backward passes, as libraries that train on several devices know it."""

    @staticmethod
    def queue_callback(callback: Callable[[], Any]) -> None:
        """Call `callback()` at the end of the outermost backward pass. Raises StateError where none is under way."""
        if not passes.running:
            raise StateError("queue_callback", "a backward pass under way", "none", "call it from a hook or a backward")
        passes.at_end.append(callback)


class _VariableType(TensorType):
    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Tensor)


class Variable(Tensor, metaclass=_VariableType):
    """`Variable(data)` is a new leaf over the memory of `data`, as in PyTorch since 0.4; every Tensor is one."""

    _execution_engine = _Engine()
    __torch_function__ = overrides.disabled

    def __new__(cls, data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Any:
        return data.detach().requires_grad_(requires_grad)


_multithreading = ScopedVariable("ampkit.multithreading", True)


def is_multithreading_enabled() -> bool:
    """What `set_multithreading_enabled` was told: a backward pass runs in the thread that calls it in any case."""
    return _multithreading.scope().value


class set_multithreading_enabled:
    """From now on, or within a block, `is_multithreading_enabled()` is `mode`; nothing else changes."""

    def __init__(self, mode: bool):
        self._before, self._scope = _multithreading.scope(), Scope(mode)
        _multithreading.put(self._scope)

    def __enter__(self) -> None:
        """Nothing is left to do."""

    def __exit__(self, *error: object) -> None:
        _multithreading.leave(self._scope, self._before)
