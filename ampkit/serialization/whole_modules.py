"""Whole modules, and other plain objects, in a file: the name of their class, and their attributes. No code of it runs.

One is made by `object.__new__` of a class that the program has defined, and given its attributes; one of a class that
derives from types.SimpleNamespace by the `__new__` of that. Neither `__init__` nor anything else is called. So its
class may have no methods of its own for that, nor for its end. A member of an enumeration is looked up by its value.
Functions, such as an activation that is an attribute, are ampkit's ops alone.
"""

from __future__ import annotations

import sys
import types
from abc import ABCMeta
from contextlib import suppress
from enum import Enum
from importlib import import_module
from typing import Any

from ..base.errors import DTypeError, FileError
from ..core.op import Op
from ..nn.module import Module
from .unpickle import Global, keys

OPS = "ampkit.ops"  # the package
_LATER = ("ampkit.debug.", "ampkit.distributions.", "ampkit.models.", "ampkit.run.trainer.")
_ATTRIBUTES = frozenset(vars(Module()))  # those of every module
_OF_PYTHON = 1 << 9  # CPython's Py_TPFLAGS_HEAPTYPE: of a class statement
_RUN = ("__del__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")  # methods that pickles, or the end, run


def name_of(value: Any) -> str:
    """The dotted name by which `find` finds the class of an object, or a function. Raises DTypeError without one."""
    kind = value if is_function(value) else type(value)
    name = _dotted(kind)
    if _named(name) is not kind:
        module = isinstance(value, Module)
        needs = f"{'modules' if module else 'objects'} of classes at the top of a file"
        raise DTypeError("save", needs, f"one of {name}", "save its state_dict()" if module else None)
    return name


def is_plain(kind: Any) -> bool:
    """Whether objects of a class are their attributes alone: it defines no other way to make, pickle or end them."""
    if type(kind) not in (type, ABCMeta) or not (kind.__flags__ & _OF_PYTHON or kind is types.SimpleNamespace):
        return False
    base = _maker(kind)
    ways = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    own = all(getattr(kind, name) is getattr(base, name) for name in ways)
    slots = any(vars(each).get("__slots__") for each in kind.__mro__)
    return own and not slots and kind.__dictoffset__ != 0 and not any(hasattr(kind, name) for name in _RUN)


def _maker(kind: type) -> Any:
    # The class whose `__new__` makes an object of `kind`.
    return types.SimpleNamespace if issubclass(kind, types.SimpleNamespace) else object


def is_function(value: Any) -> bool:
    """Whether a value is an op, or another function of ampkit.ops."""
    if not isinstance(value, (types.FunctionType, Op)) or not f"{value.__module__}.".startswith(f"{OPS}."):
        return False
    return _named(_dotted(value)) is value


def find(name: str) -> Any:
    """The class, to be made without a call, or the function that a dotted name stands for; None for others."""
    found = _named(name)
    if isinstance(found, type) and issubclass(found, Enum):
        return Global(name, lambda value: found._value2member_map_[keys([value])[0]])
    if isinstance(found, type) and (issubclass(found, Module) or is_plain(found)):
        made_by = _maker(found).__new__
        return Global(name, lambda: made_by(found))
    return found if is_function(found) else None


def set_state(where: str, value: Any, state: Any) -> bool:
    """Give an object that `find` made its attributes; False for another value.

    Raises FileError, which begins with `where`, for a module of PyTorch itself, whose attributes are others.
    """
    if not isinstance(value, Module) and not is_plain(type(value)):
        return False
    if not isinstance(state, dict) or not all(type(name) is str for name in state):
        raise ValueError(f"the state of a {type(value).__name__}")
    if isinstance(value, Module) and _ATTRIBUTES - state.keys():
        got, cure = f"a whole {type(value).__name__} that PyTorch pickled", "save its state_dict() in PyTorch"
        raise FileError(where, "a whole module that ampkit.save wrote", got, cure)
    value.__dict__.update(state)
    return True


def _dotted(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _named(name: str) -> Any:
    # Of a module that is imported already: a file imports nothing but the parts of ampkit that wait for their use.
    place, _, attribute = name.rpartition(".")
    if place.startswith(_LATER):
        with suppress(ModuleNotFoundError):
            import_module(place)
    return vars(sys.modules[place]).get(attribute) if place in sys.modules else None
