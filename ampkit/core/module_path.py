"""Which module's forward is running: its path in the model, for a policy by module and for tools that name modules.

Calls of modules are followed only while something needs them. Otherwise a call of a module, and the recording of an
op, pay one test of an empty list.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple


class ModuleCall(NamedTuple):
    """A call of a module.

    path: its dotted name in the model, as in `named_modules`; "" for the model itself, which is the outermost module
    called. A module outside of the model's tree is named by its type, `encoder.<Linear>`. paths: the path of every
    module of the model, by id.
    """

    path: str
    module: Any
    model: Any
    paths: dict[int, str]


following: list[object] = []  # what needs the calls of modules followed
_current: ContextVar[ModuleCall | None] = ContextVar("ampkit.module_call", default=None)


@contextmanager
def follow() -> Iterator[None]:
    """Within the block, calls of modules are followed: `current` and `Node.module_call` tell them."""
    reason = object()
    following.append(reason)
    try:
        yield
    finally:
        following.remove(reason)


def current() -> ModuleCall | None:
    """The innermost followed call that is running, in backward that of the node's forward; None outside of modules."""
    return _current.get()


def current_path() -> str | None:
    """The path of `current`, None outside of modules."""
    call = _current.get()
    return None if call is None else call.path


def new_call(module: Any) -> ModuleCall:
    """The call of `module` inside the one that is running."""
    above = _current.get()
    if above is None:
        return ModuleCall("", module, module, {id(found): path for path, found in module.named_modules()})
    path = above.paths.get(id(module))
    if path is None:
        path = f"{above.path}.<{type(module).__name__}>".removeprefix(".")
    return ModuleCall(path, module, above.model, above.paths)


@contextmanager
def running(call: ModuleCall | None) -> Iterator[None]:
    """Within the block, `current` is `call`."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)
