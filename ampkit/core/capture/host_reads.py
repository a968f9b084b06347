"""Where a step reads numbers, switches and names on the host: found from its code and from the objects it refers to.

The walk starts at the step and follows closures, globals, bound methods, and the attributes whose names occur in the
code that it meets. An object of the library says itself what steps read of it, by a method `read_by_steps`. What code
computes on the way (`getattr` with a name made by the step, a file, the time) is not found.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from io import IOBase
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    NoneType,
)  # fmt: skip
from typing import Any, NamedTuple

import numpy as np

from ..op import Op
from ..random import Stream, default
from ..tensor import Tensor
from .code_names import CONSTRUCTORS, IMPLICIT, function_of, is_library, names_in

Source = tuple[Callable[[Any], Any], Any]  # read(key) is the value that a step would find now

MAX_ITEMS = 64  # a longer list or dict is data: its length is compared, what it holds is not
MAX_OBJECTS = 20_000
PLAIN = (bool, int, float, complex, str, bytes, NoneType, np.generic, np.dtype, range, slice)
_BASES = {"ampkit.nn.module", "ampkit.optim.optimizer", "ampkit.optim.elementwise", "builtins"}


class Found(NamedTuple):
    """What a step reads on the host: places, tensors, and random generators, as the places of their states."""

    sources: list[Source]
    tensors: list[Tensor]
    generators: list[Source]


class Reads:
    """The objects that steps refer to, each visited once, and the names of attributes that occur in their code."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._new_names: set[str] = set()
        self._seen: dict[int, Any] = {}  # by id; holds them, as an id may be another object's once one is freed
        self._waiting: list[Any] = []
        self._objects: list[_Object] = []
        self._new_objects: list[_Object] = []
        self._containers: list[Any] = []
        self._items: set[tuple[int, Any]] = set()  # ids of containers, and keys
        self._found = Found([], [], [])

    def of(self, *values: Any) -> Found:
        """Where a step reads `values`, or what they refer to, as far as that was not found before.

        Without any: in what earlier calls of the step have added to objects that were found before.
        """
        self.visit(*values)
        if not values:
            self._waiting += self._containers
            self._new_names, self._names = self._names, set()
        while self._waiting or self._new_objects or self._new_names:
            while self._waiting:
                self._follow(self._waiting.pop())
            fresh, names = self._new_objects, self._new_names
            self._new_objects, self._new_names = [], set()
            for each in self._objects if names else ():
                self._attributes(each, names)
            self._names |= names
            for each in fresh:
                self._attributes(each, self._names)
            self._objects += fresh
        found, self._found = self._found, Found([], [], [])
        return found

    def visit(self, *values: Any) -> None:
        """Follow what `values` refer to, each once."""
        for value in values:
            plain = isinstance(value, PLAIN) or hasattr(type(value), "__cuda_array_interface__")
            if not plain and id(value) not in self._seen and len(self._seen) < MAX_OBJECTS:
                self._seen[id(value)] = value
                self._waiting.append(value)

    def attributes(self, value: Any, every: bool = False) -> None:
        """Follow the attributes of an object whose names occur in code; every: all public ones of its own."""
        held = _dict_of(value)
        classes = [kind for kind in type(value).__mro__ if not is_library(kind)]
        for kind in classes:
            for name in IMPLICIT & vars(kind).keys():
                self.visit(function_of(vars(kind)[name]))
        names = self._class(type(value)) if hasattr(type(value), "read_by_steps") else set()
        if every and held is not None:
            names.update(name for name in held if not name.startswith("_"))
        slots = {name for kind in classes for name in _slots(kind)}
        if held is not None and (every or classes):
            self._found.sources.append((len, held))  # an attribute that is new may hide a class's, or a default
        tables = [*([] if held is None else [held]), *(vars(kind) for kind in classes)]
        self._new_objects.append(_Object(value, tables, names, slots))

    def _follow(self, value: Any) -> None:
        own = getattr(type(value), "read_by_steps", None)
        if own is not None:
            for source in own(value, self):
                self._source(source)
            return
        for kind, follow in _FOLLOW.items():
            if isinstance(value, kind):
                follow(self, value)
                return
        self.attributes(value)

    def _class(self, kind: type) -> set[str]:
        # Follow the methods of a user's class, which the library calls; return the names in those of its bases here.
        found: set[str] = set()
        for each in kind.__mro__:
            if each.__module__ in _BASES:
                break
            for name, member in vars(each).items():
                function = None if name in CONSTRUCTORS else function_of(member)
                if function is not None and not is_library(each):
                    self.visit(function)
                elif function is not None and not is_library(kind):
                    found |= names_in(function.__code__)[0]
        return found

    def _attributes(self, each: _Object, names: Collection[str]) -> None:
        for table in each.tables:
            of_class = type(table) is MappingProxyType and not isinstance(each.value, type)
            for name in each.new(table, names if type(table) is MappingProxyType else {*names, *each.names}):
                value = table[name]
                if type(table) is MappingProxyType and (function := function_of(value)) is not None:
                    self.visit(function)
                elif not of_class or not hasattr(type(value), "__get__"):
                    self._source((table.get, name))
        for name in each.new(each.slots, names):
            self._source((partial(_slot, each.value), name))

    def _source(self, source: Source) -> None:
        read, key = source
        value = read(key)
        if not (isinstance(value, ModuleType) and is_library(value)):
            self._found.sources.append(source)
            self.visit(value)

    # kinds of values

    def _function(self, function: FunctionType) -> None:
        for cell in function.__closure__ or ():
            self._source((_name_in_a_closure, cell))
        if is_library(function):
            return
        attributes, globals_ = names_in(function.__code__)
        self._new_names |= attributes - self._names
        for name in globals_ & function.__globals__.keys():
            self._source((function.__globals__.get, name))
        self.visit(function.__defaults__, function.__kwdefaults__)

    def _items_of(self, items: Any, read: Callable[[Any], Any], keys: Iterable[Any]) -> None:
        if (id(items), len) not in self._items:
            self._items.add((id(items), len))
            self._containers.append(items)
            self._found.sources.append((len, items))
        for key in keys if len(items) <= MAX_ITEMS else ():
            if (id(items), key) not in self._items:
                self._items.add((id(items), key))
                self._source((read, key))

    def _set(self, items: set[Any]) -> None:
        self._found.sources.append((frozenset, items) if len(items) <= MAX_ITEMS else (len, items))

    def _named(self, value: Any) -> None:  # a class or a module
        if is_library(value):
            return
        calls_its_methods = isinstance(value, type) and any(map(is_library, value.__mro__[:-1]))
        names = self._class(value) if calls_its_methods else set()
        self._new_objects.append(_Object(value, [vars(value)], names, set()))

    def _tensor(self, tensor: Tensor) -> None:
        self._found.tensors.append(tensor)
        if (own := _dict_of(tensor)) is not None:
            self._found.sources.append((len, own))
            self._new_objects.append(_Object(tensor, [own], set(), set()))

    def _array(self, array: Any) -> None:
        if array.size <= MAX_ITEMS:
            self._found.sources.append((type(array).tobytes, array))

    def _op(self, op: Op) -> None:
        for primitive in () if op.builtin else (op.forward, op.backward_primitive):
            self.visit(None if primitive is None else primitive.reference)

    def _iterator(self, iterator: Any) -> None:
        if not isinstance(iterator, IOBase):
            self._found.generators.append((_iterator_that_advances, iterator))

    def _stream(self, stream: Stream) -> None:
        if stream is not default:  # whose draws a launch makes anew
            self._source((Stream.state, stream))

    def _builtin(self, method: BuiltinFunctionType) -> None:
        if not isinstance(method.__self__, ModuleType):  # such as `append` of a list
            self.visit(method.__self__)


_NUMPY_RANDOM = (np.random.Generator, np.random.RandomState)
_FOLLOW: dict[Any, Callable[[Reads, Any], None]] = {
    Tensor: Reads._tensor,
    FunctionType: Reads._function,
    MethodType: lambda reads, method: reads.visit(method.__func__, method.__self__),
    partial: lambda reads, call: reads.visit(call.func, call.args, call.keywords),
    BuiltinFunctionType: Reads._builtin,
    np.ndarray: Reads._array,
    (type, ModuleType): Reads._named,
    tuple: lambda reads, items: reads.visit(*items[:MAX_ITEMS]),
    (list, deque): lambda reads, items: reads._items_of(items, items.__getitem__, range(len(items))),
    set: Reads._set,
    Mapping: lambda reads, items: reads._items_of(items, items.get, list(items)),
    Op: Reads._op,
    Stream: Reads._stream,
    random.Random: lambda reads, source: reads._found.generators.append((type(source).getstate, source)),
    _NUMPY_RANDOM: lambda reads, source: reads._found.generators.append((_state_of_numpy_random, source)),
    ContextVar: lambda reads, variable: reads._source((_context_variable, variable)),
    Iterator: Reads._iterator,
}


class _Object:
    """An object with attributes: the tables that hold them, names to follow beside those in code, and its slots."""

    def __init__(self, value: Any, tables: list[Any], names: set[str], slots: set[str]):
        self.value, self.tables, self.names, self.slots = value, tables, names, slots
        self._done: set[tuple[int, str]] = set()

    def new(self, table: Collection[str], names: Collection[str]) -> list[str]:
        """Those of `names` that are in a table, each once."""
        found = [name for name in sorted(names) if name in table and (id(table), name) not in self._done]
        self._done.update((id(table), name) for name in found)
        return found


def _slots(kind: type) -> Iterator[str]:
    named = vars(kind).get("__slots__", ())
    return iter((named,) if isinstance(named, str) else named)


def _slot(value: Any, name: str) -> Any:
    return getattr(value, name, None)


def _context_variable(variable: ContextVar[Any]) -> Any:
    return variable.get(None)


def _iterator_that_advances(iterator: Any) -> object:
    # Never equal: a step that refers to an iterator takes items from it.
    return object()


def _state_of_numpy_random(generator: Any) -> str:
    held = generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()
    return repr(held)


def _dict_of(value: Any) -> dict[str, Any] | None:
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return held if isinstance(held, dict) else None


def _name_in_a_closure(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a name that is not bound yet
        return None
