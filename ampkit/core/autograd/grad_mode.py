"""Gradient mode: whether operations are recorded on the tape."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from ampkit.base.errors import switch

from ..context_decorator import decorate

_F = TypeVar("_F", bound=Callable[..., Any])
_recording: ContextVar[bool] = ContextVar("ampkit.recording", default=True)
_inference: ContextVar[bool] = ContextVar("ampkit.inference", default=False)


def is_grad_enabled() -> bool:
    """Whether operations are recorded here."""
    return _recording.get()


class _Recording:
    """Recording on or off, within a block or a decorated function (also a generator or a coroutine)."""

    mode: bool

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_recording.get())
        _recording.set(self.mode)

    def __exit__(self, *error: object) -> None:
        _recording.set(self._before.pop())

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
        self.mode, self._modes = not self._inference, list[bool]()

    def __enter__(self) -> None:
        super().__enter__()
        self._modes.append(_inference.get())
        _inference.set(self._inference)

    def __exit__(self, *error: object) -> None:
        _inference.set(self._modes.pop())
        super().__exit__(*error)

    def __call__(self, function: _F) -> _F:
        return decorate(lambda: inference_mode(self._inference), function, "inference_mode")


def is_inference_mode_enabled() -> bool:
    """Whether this runs within `inference_mode()`."""
    return _inference.get()


class set_grad_enabled(_Recording):
    """From now on record operations or don't; as a block or a decorator, only there."""

    def __init__(self, mode: bool):
        self.mode = switch("set_grad_enabled", "mode", mode)
        self._before = [_recording.get()]
        _recording.set(self.mode)

    def __enter__(self) -> None:
        _recording.set(self.mode)

    def __call__(self, function: _F) -> _F:
        _recording.set(self._before[-1])
        return decorate(enable_grad if self.mode else no_grad, function, "set_grad_enabled")
