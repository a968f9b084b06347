"""Gradient mode: whether operations are recorded on the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ampkit.base.errors import switch
from ampkit.base.scoped import Scope, ScopedVariable

from ...base.context_decorator import decorate

_F = TypeVar("_F", bound=Callable[..., Any])
_recording = ScopedVariable("ampkit.recording", True)
_inference = ScopedVariable("ampkit.inference", False)
RECORDING = {mode: Scope(mode) for mode in (True, False)}  # for `replace`
grad_scope = _recording.scope  # grad_scope().value: whether operations are recorded here


def is_grad_enabled() -> bool:
    """Whether operations are recorded here."""
    return grad_scope().value


class _Recording:
    """Recording on or off, within a block or a decorated function (also a generator or a coroutine)."""

    mode: bool

    def __init__(self) -> None:
        self._scopes: list[Scope[bool]] = []

    def __enter__(self) -> None:
        self._scopes.append(_recording.enter(self.mode))

    def __exit__(self, *error: object) -> None:
        _recording.leave(self._scopes.pop())

    def __call__(self, function: _F) -> _F:
        return decorate(type(self), function, type(self).__name__)


class _Region(_Recording):
    """A region without arguments: as a decorator it may do without parentheses."""

    def __new__(cls, orig_func: Any = None) -> Any:
        made = super().__new__(cls)
        return made if orig_func is None else decorate(cls, orig_func, cls.__name__)

    def __init__(self, orig_func: Any = None) -> None:
        super().__init__()


class no_grad(_Region):
    """Within the block, or the decorated function, nothing is recorded."""

    mode = False


class enable_grad(_Region):
    """Within the block, or the decorated function, operations are recorded, also inside `no_grad`."""

    mode = True


class inference_mode(_Recording):
    """`no_grad`; with mode=False records, also inside `no_grad`. As a decorator it may do without parentheses."""

    def __new__(cls, mode: Any = True) -> Any:
        return decorate(cls, mode, cls.__name__) if callable(mode) else super().__new__(cls)

    def __init__(self, mode: Any = True):
        super().__init__()
        self._inference = switch("inference_mode", "mode", mode)
        self.mode, self._modes = not self._inference, list[Scope[bool]]()

    def __enter__(self) -> None:
        super().__enter__()
        self._modes.append(_inference.enter(self._inference))

    def __exit__(self, *error: object) -> None:
        _inference.leave(self._modes.pop())
        super().__exit__(*error)

    def __call__(self, function: _F) -> _F:
        return decorate(lambda: inference_mode(self._inference), function, "inference_mode")


def is_inference_mode_enabled() -> bool:
    """Whether this runs within `inference_mode()`."""
    return _inference.scope().value


class set_grad_enabled(_Recording):
    """From now on record operations or don't; as a block or a decorator, only there."""

    def __init__(self, mode: bool):
        self.mode = switch("set_grad_enabled", "mode", mode)
        self._before, self._scope = grad_scope(), Scope(self.mode)
        _recording.put(self._scope)

    def __enter__(self) -> None:
        self._scope = Scope(self.mode)
        _recording.put(self._scope)

    def __exit__(self, *error: object) -> None:
        _recording.leave(self._scope, self._before)

    def __call__(self, function: _F) -> _F:
        _recording.put(self._before)
        return decorate(enable_grad if self.mode else no_grad, function, "set_grad_enabled")
