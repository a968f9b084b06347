"""What other processes may call here, by name: nothing is imported or executed because a message names it.

- Functions and classes that `register` declares, or `init_rpc(functions=...)`.
- The functions of `ampkit.ops` and the layers of `ampkit.nn`.
- Of a value that an RRef refers to, the methods of Tensors, layers and declared classes; none whose name begins with an
  underscore, but `__call__`, `__getitem__` and `__len__`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeVar

from ... import nn, ops
from ...base.errors import ArgumentError, DTypeError
from ...core.tensor import Tensor

_F = TypeVar("_F")
LIBRARY = {"ops": ops, "nn": nn}
OPERATORS = ("__call__", "__getitem__", "__len__")
SCRIPTS = ("__main__", "__mp_main__")  # of a process, and of one that multiprocessing spawned
_CURE = "@rpc.register above its definition there, or init_rpc(functions=[...])"
_declared: dict[str, Any] = {}
_names: dict[Any, str] = {}


def register(function: _F | None = None, *, name: str | None = None) -> Any:
    """Let other processes call a function, or make objects of a class and call its methods; a decorator.

    name: by which they call it, where they do not have the function itself; by default its module and its name, as
    "server.lookup". Of a module it declares the functions and classes that the module defines.
    Raises DTypeError for what is none of these, and ArgumentError for lambdas, functions inside of functions, and a
    name that another function has.
    """
    if function is None:
        return lambda found: register(found, name=name)
    if isinstance(function, ModuleType):
        _declare(each for each in list(vars(function).values()) if _defined_in(function, each))
        return function
    if not callable(function):
        raise DTypeError("rpc.register", "a function, a class or a module", f"a {type(function).__name__}")
    wanted = name or _path("rpc.register", function)
    known = _declared.setdefault(wanted, function)
    if known is not function and _origin(known) != _origin(function):  # not defined anew, as in a notebook
        raise ArgumentError("rpc.register", "a name for each function", f"{wanted!r} twice", "name=")
    _declared[wanted] = function
    if name is not None:
        _names[function] = name
    return function


def _declare(functions: Iterable[Any]) -> None:
    for each in functions:
        register(each)


def _defined_in(module: ModuleType, value: Any) -> bool:
    if not (inspect.isfunction(value) or inspect.isclass(value)) or "<" in value.__qualname__:
        return False
    return value.__module__ == module.__name__ or {value.__module__, module.__name__} <= set(SCRIPTS)


def _origin(function: Any) -> tuple[Any, Any]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", None)


def name_of(where: str, function: Any) -> str:
    """The name by which other processes know a function or a class; a text is one already.

    Raises ArgumentError for what no name can stand for.
    """
    if isinstance(function, str):
        return function
    if inspect.ismethod(function):
        raise ArgumentError(where, "a function", f"a method of an object, {function.__qualname__}",
                            "rref.rpc_sync().method(...), for the RRef of the object")  # fmt: skip
    try:
        given = _names.get(function)
    except TypeError:  # not hashable
        given = None
    return given or _in_library(function) or _path(where, function)


def _in_library(function: Any) -> str | None:
    name = getattr(function, "__name__", "")
    return next((f"{space}.{name}" for space in LIBRARY if _of_library(space, name) is function), None)


def _of_library(space: str, name: str) -> Any:
    """A function of `ampkit.ops` or a layer of `ampkit.nn`; None for anything else there."""
    module = LIBRARY[space]
    found = getattr(module, name, None) if name in module.__all__ else None
    is_layer = inspect.isclass(found) and issubclass(found, nn.Module)
    return found if callable(found) and is_layer == (space == "nn") else None


def _path(where: str, function: Any) -> str:
    module, name = _origin(function)
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        said = name if isinstance(name, str) else f"a {type(function).__name__}"
        raise ArgumentError(where, "a function that has a name in its module", said, "define it by `def` outside")
    return f"{'__main__' if module in SCRIPTS else module}.{name}"


def found(name: str) -> Callable[..., Any]:
    """What a name stands for in this process. Raises ArgumentError for one that is not declared."""
    if name in _declared:
        return _declared[name]
    space, _, last = name.partition(".")
    if space in LIBRARY and (known := _of_library(space, last)) is not None:
        return known
    owner, _, method = name.rpartition(".")
    if inspect.isclass(kind := _declared.get(owner)) and _is_open(method):
        return getattr(kind, method)
    raise ArgumentError("rpc", "a function that this worker has declared", repr(name), _CURE)


def method_of(value: Any, name: str) -> Callable[..., Any]:
    """A method that other processes may call of a value. Raises ArgumentError for others."""
    kinds = (Tensor, nn.Module, *(kind for kind in list(_declared.values()) if inspect.isclass(kind)))
    if not isinstance(value, kinds):
        got = f"{name!r} of a {type(value).__name__}"
        raise ArgumentError("rpc", "a method of a Tensor, a layer or a declared class", got, _CURE)
    if not _is_open(name):
        raise ArgumentError("rpc", f"a method without a leading underscore, or {OPERATORS}", repr(name))
    return getattr(value, name)


def _is_open(name: str) -> bool:
    return not name.startswith("_") or name in OPERATORS
