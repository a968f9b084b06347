"""Whole modules in a file: the name of their class, and their attributes. No code of a file runs.

A module is made by `object.__new__` of a class that the program has defined, and given its attributes; neither
`__init__` nor anything else is called. Functions, such as an activation that is an attribute, are ampkit's ops alone.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from ..base.errors import DTypeError, FileError
from ..core.op import Op
from ..nn.module import Module
from .unpickle import Global

OPS = "ampkit.ops"  # the package
_ATTRIBUTES = frozenset(vars(Module()))  # those of every module


def name_of(value: Any) -> str:
    """The dotted name by which `find` finds the class of a module, or a function. Raises DTypeError without one."""
    kind = type(value) if isinstance(value, Module) else value
    name = _dotted(kind)
    if _named(name) is not kind:
        needs, cure = "modules of classes at the top of a file", "save its state_dict()"
        raise DTypeError("save", needs, f"one of {name}", cure)
    return name


def is_function(value: Any) -> bool:
    """Whether a value is an op, or another function of ampkit.ops."""
    if not isinstance(value, (types.FunctionType, Op)) or not f"{value.__module__}.".startswith(f"{OPS}."):
        return False
    return _named(_dotted(value)) is value


def find(name: str) -> Any:
    """The module class, to be made without a call, or the function that a dotted name stands for; None for others."""
    found = _named(name)
    if isinstance(found, type) and issubclass(found, Module):
        return Global(name, lambda: object.__new__(found))
    return found if is_function(found) else None


def set_state(where: str, value: Any, state: Any) -> bool:
    """Give a module that `find` made its attributes; False for another value.

    Raises FileError, which begins with `where`, for a module of PyTorch itself, whose attributes are others.
    """
    if not isinstance(value, Module):
        return False
    if not isinstance(state, dict) or not all(type(name) is str for name in state):
        raise ValueError(f"the state of a {type(value).__name__}")
    if _ATTRIBUTES - state.keys():
        got, cure = f"a whole {type(value).__name__} that PyTorch pickled", "save its state_dict() in PyTorch"
        raise FileError(where, "a whole module that ampkit.save wrote", got, cure)
    value.__dict__.update(state)
    return True


def _dotted(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _named(name: str) -> Any:
    # Of a module that is imported already: a file imports nothing.
    place, _, attribute = name.rpartition(".")
    return vars(sys.modules[place]).get(attribute) if place in sys.modules else None
