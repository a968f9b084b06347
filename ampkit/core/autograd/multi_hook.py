"""Hooks on the gradients of several tensors at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

from ampkit.base.errors import StateError, check_choice

from ..tensor import Tensor
from .backward_pass import BackwardPass
from .hooks import Handle, need_callable, passes, register_hook


class MultiHandle(Handle):
    """The hooks of one registration, which `remove()` unregisters."""

    def __init__(self, handles: Sequence[Handle]):
        super().__init__({}, handles[0].id if handles else 0)
        self._handles = handles

    def remove(self) -> None:
        """Unregister them all; a second call does nothing."""
        for handle in self._handles:
            handle.remove()


def register_multi_grad_hook(tensors: Sequence[Tensor], fn: Callable[[Any], Any], *, mode: str = "all") -> Handle:
    """Call `fn` once in every backward that gives some of `tensors` a gradient.

    mode="all": `fn(gradients)`, None for a tensor that gets none, once the last one is there. mode="any":
    `fn(gradient)` with the first. What it returns is not used. Raises ArgumentError for another mode, DTypeError for
    something that cannot be called, StateError for a tensor that requires no grad, and in a backward with mode="all"
    through recomputed functions, since the tensors that it reaches are not known before.
    """
    need_callable(fn, "register_multi_grad_hook")
    check_choice("register_multi_grad_hook", "mode", mode, "all", "any")
    calls = _Any(fn) if mode == "any" else _All(fn, tensors)
    return MultiHandle([register_hook(tensor, calls.hook(place)) for place, tensor in enumerate(tensors)])


class _Any:
    """Calls `fn` with the first gradient of each pass."""

    def __init__(self, fn: Callable[[Tensor], Any]):
        self._fn, self._lock = fn, threading.Lock()
        self._called: WeakKeyDictionary[BackwardPass, bool] = WeakKeyDictionary()

    def hook(self, place: int) -> Callable[[Tensor], None]:
        return self._receive

    def _receive(self, gradient: Tensor) -> None:
        with self._lock:
            called = self._called.get(passes.running[-1], False)
            self._called[passes.running[-1]] = True
        if not called:
            self._fn(gradient)


class _All:
    """Collects the gradients of each pass, and calls `fn` with the last that arrives."""

    def __init__(self, fn: Callable[[list[Tensor | None]], Any], tensors: Sequence[Tensor]):
        self._fn, self._lock = fn, threading.Lock()
        # Weak references, as the tensors hold this.
        edges = [tensor._tape_edge for tensor in tensors]
        self._sources = [None if edge is None else (ref(edge[0]), *edge[1:]) for edge in edges]
        self._found: WeakKeyDictionary[BackwardPass, tuple[set[int], list[Tensor | None]]] = WeakKeyDictionary()

    def hook(self, place: int) -> Callable[[Tensor], None]:
        return lambda gradient: self._receive(place, gradient)

    def _receive(self, place: int, gradient: Tensor) -> None:
        current = passes.running[-1]
        with self._lock:
            if current not in self._found:
                self._found[current] = self._expected(current), [None] * len(self._sources)
            missing, gradients = self._found[current]
            missing.discard(place)
            gradients[place] = gradient
        if not missing:
            self._fn(gradients)

    def _expected(self, current: BackwardPass) -> set[int]:
        if current.grows:
            raise StateError("register_multi_grad_hook", "a graph without recomputed functions", "one with", _CURE)
        edges = [None if source is None else (source[0](), *source[1:]) for source in self._sources]
        return {i for i, edge in enumerate(edges) if edge and edge[0] is not None and current.reaches(edge)}


_CURE = 'use mode="any", or Tensor.register_hook'
