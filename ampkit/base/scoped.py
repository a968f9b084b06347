"""Variables that have a value within a block: per context, as `contextvars`, and right when a collection ends a block.

A generator that is suspended inside `with autocast()` may be ended by the garbage collector: in another context, or in
the middle of other code, which has read a context variable and is about to set it. A variable that the exit set there
would be set back by that code, and the block would never end. So a block that a collection ends sets no variable: its
scope takes the value from below, wherever it is in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from itertools import takewhile
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from . import collector

_T = TypeVar("_T")


class Scope(Generic[_T]):
    """The value of a variable in one block, and the scope around it; None around a value that replaces all others."""

    __slots__ = ("__weakref__", "_followers", "below", "ended", "value")

    def __init__(self, value: _T, below: Scope[_T] | None = None):
        self.value, self.below, self.ended = value, below, False
        self._followers: WeakSet[Scope[_T]] | None = None  # those that have ended, and have the value of this one

    def end(self, below: Scope[_T]) -> None:
        """Take the value of the scope around it, here and wherever else this scope is in force."""
        if not self.ended:
            self.ended = True
            self._take(below.value)
            below._followers = WeakSet() if below._followers is None else below._followers
            below._followers.add(self)

    def _take(self, value: _T) -> None:
        self.value = value
        for scope in self._followers or ():
            scope._take(value)


class ScopedVariable(Generic[_T]):
    """A variable with a value per block: `variable.scope().value`, which costs what a ContextVar does."""

    def __init__(self, name: str, default: _T):
        outermost = Scope(default)
        self._variable: ContextVar[Scope[_T]] = ContextVar(name, default=outermost)
        self.scope: Callable[[], Scope[_T]] = self._variable.get

    def enter(self, value: _T) -> Scope[_T]:
        """Begin a block with this value. Returns its scope, for `leave`."""
        below = self.scope()
        while below.ended and below.below is not None:
            below = below.below
        scope = Scope(value, below)
        self._variable.set(scope)
        return scope

    def leave(self, scope: Scope[_T], below: Scope[_T] | None = None) -> None:
        """End the block of this scope, and restore what was in force before it: `below`, or the scope around it."""
        before = scope.below if below is None else below
        assert before is not None
        if collector.thread is not None and collector.is_collecting():
            scope.end(before)
        else:
            self._variable.set(before)

    @contextmanager
    def holding(self, value: _T) -> Iterator[None]:
        """Within the block the variable has this value."""
        scope = self.enter(value)
        try:
            yield
        finally:
            self.leave(scope)

    def leave_in_any_order(self, scope: Scope[_T]) -> None:
        """End the block of this scope; blocks that began later, and are open, stay in force."""
        assert scope.below is not None
        if self.scope() is scope or next(self._chain()) is scope:
            self.leave(scope)
        else:
            scope.end(scope.below)

    def innermost(self, scopes: Sequence[Scope[_T]], error: tuple[object, ...]) -> Scope[_T] | None:
        """Of the open scopes of one context manager the innermost that is in force here; None if none is.

        error: what its `__exit__` got. A generator that is ended from elsewhere may have its scope in another context.
        """
        if scopes and self.scope() is scopes[-1] and not scopes[-1].ended:
            return scopes[-1]
        here = next((found for found in self._chain() if any(found is scope for scope in scopes)), None)
        if here is None and (collector.is_collecting() or error[:1] == (GeneratorExit,)):
            others = [scope for scope in scopes if not scope.ended]
            return others[0] if len(others) == 1 else None
        return here

    def replace(self, scope: Scope[_T]) -> Token[Scope[_T]]:
        """Replace the values of all blocks by that of `scope`, which has none below it, until `restore`."""
        return self._variable.set(scope)

    def restore(self, token: Token[Scope[_T]]) -> None:
        """Restore what `replace` replaced."""
        self._variable.reset(token)

    def put(self, scope: Scope[_T]) -> None:
        """Let `scope` be in force from now on."""
        self._variable.set(scope)

    def since(self, before: Scope[_T]) -> list[Scope[_T]]:
        """The scopes of open blocks that began after that of `before`, from the innermost on."""
        return list(takewhile(lambda scope: scope is not before, self._chain()))

    def is_open(self, scope: Scope[_T]) -> bool:
        """Whether the block of this scope is open here."""
        return any(found is scope for found in self._chain())

    def _chain(self) -> Iterator[Scope[_T]]:
        # The scopes of open blocks, from the innermost on.
        scope: Scope[Any] | None = self.scope()
        while scope is not None:
            if not scope.ended:
                yield scope
            scope = scope.below
