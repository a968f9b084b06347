"""Which module's forward is running: its path in the model, for a policy by module and for tools that name modules.

Calls of modules are followed only while something needs them. Otherwise a call of a module, and the recording of an
op, pay one test of an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import ref

from ..base.errors import ConfigError
from ..base.near_names import did_you_mean


class ModuleCall(NamedTuple):
    """A call of a module.

    path: its dotted name in the model, as in `named_modules`; "" for the model itself, which is the outermost module
    called. A module outside of the model's tree is named by its type, `encoder.<Linear>`. paths: the path of every
    module of the model, by id. model_reference: a weak reference to the model, which may hold a tensor whose node holds
    this call; None for no model.
    """

    path: str
    model_reference: ref[Any] | None
    paths: dict[int, str]

    @property
    def model(self) -> Any:
        """The model; None once it is gone."""
        return None if self.model_reference is None else self.model_reference()


_SHOWN = 6  # paths, by an error

following: list[object] = []  # what needs the calls of modules followed
apart: list[object] = []  # what needs each module called by itself, without fused calls of several
_current: ContextVar[ModuleCall | None] = ContextVar("ampkit.module_call", default=None)


@contextmanager
def follow(separately: bool = False) -> Iterator[None]:
    """Within the block, calls of modules are followed: `current` and `Node.module_call` tell them.

    separately: modules that would run as one fused op are called one by one, so that each op has a path, and a name,
    that the model's author knows.
    """
    reason, lists = object(), (following, apart) if separately else (following,)
    for each in lists:
        each.append(reason)
    try:
        yield
    finally:
        for each in lists:
            each.remove(reason)


def current() -> ModuleCall | None:
    """The innermost followed call that is running, in backward that of the node's forward; None outside of modules."""
    return _current.get()


def current_path() -> str | None:
    """The path of `current`, None outside of modules."""
    call = _current.get()
    return None if call is None else call.path


def path_in_words(call: ModuleCall | None) -> str:
    """The path of a call as tools show it: "(model)" for the outermost module, "(outside modules)" for none."""
    return "(outside modules)" if call is None else call.path or "(model)"


def starred(path: str) -> str:
    """A path with `*` for the numbers of repeated modules: blocks.*.attn."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def new_call(module: Any) -> ModuleCall:
    """The call of `module` inside the one that is running."""
    above = _current.get()
    if above is None:
        return ModuleCall("", ref(module), {id(found): path for path, found in module.named_modules()})
    path = above.paths.get(id(module))
    if path is None:
        path = f"{above.path}.<{type(module).__name__}>".removeprefix(".")
    return ModuleCall(path, above.model_reference, above.paths)


class running:
    """Within the block, `current` is `call`. A class, since a generator takes five times as long."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: ModuleCall | None):
        self._call = call

    def __enter__(self) -> None:
        self._token = _current.set(self._call)

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)


def need_modules(modules: Iterable[str], paths: Iterable[str]) -> None:
    """Raise ConfigError if one of the patterns `modules` matches none of the module paths `paths` of a model."""
    paths = [path for path in paths if path]
    for pattern in modules:
        if not any(matches(pattern, path) for path in paths):
            cure = did_you_mean(pattern, paths) or _paths_in_words(paths)
            raise ConfigError("Policy, modules", "the path of a module of the model", repr(pattern), cure)


def _paths_in_words(paths: list[str]) -> str:
    more = ", ..." if len(paths) > _SHOWN else ""
    known = f"the model has {', '.join(paths[:_SHOWN])}{more}; " if paths else ""
    return f"{known}paths begin at the outermost module that is called: call the whole model"


def match_once(unmatched: dict[str, set[str]], call: ModuleCall) -> None:
    """Drop the patterns that match a module of the model of `call`; note the model's paths for the others.

    Done once per model, all of whose paths are known from its first call; not for one without parameters, as a loss is.
    """
    if not unmatched or (call.path and all(unmatched.values())) or not any(True for _ in call.model.parameters()):
        return
    paths = set(call.paths.values())
    for pattern in [*unmatched]:
        if any(matches(pattern, path) for path in paths):
            del unmatched[pattern]
        else:
            unmatched[pattern] |= paths


@lru_cache(10_000)
def matches(pattern: str, path: str) -> bool:
    """Whether `path` has the form of `pattern`: `*` stands for any one part between dots, `**` for any number."""
    return _match(pattern.split("."), path.split(".") if path else [])


def _match(pattern: list[str], parts: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_match(pattern[1:], parts[skipped:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _match(pattern[1:], parts[1:])
