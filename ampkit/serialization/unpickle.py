"""A machine for pickles that builds values by functions of a table and calls nothing else.

Python's own unpickler imports and calls what a pickle names. This one looks names up in its caller's table, and refuses
all others. So no code of a file runs, whatever bytes it has.
"""

from __future__ import annotations

import pickletools
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

import numpy as np

from ..base.errors import FileError
from ..core.tensor import Tensor

_T = TypeVar("_T")
_KEYS = (str, bytes, int, float, complex, type(None), np.dtype, Tensor)
_KINDS = "tensors, numbers, strings and plain containers"
_CURE = "load it in PyTorch, with its classes, and save its state_dict()"


class Global:
    """What a pickle names: `build` makes a value from the arguments that the pickle calls it with."""

    __slots__ = ("build", "name")

    def __init__(self, name: str, build: Callable[..., Any] | None):
        self.name, self.build = name, build


class Machine:
    """Runs the pickle that begins at the position of a file.

    find(name): the value or the Global that a dotted name stands for, None for one to refuse. persistent(id): the value
    of a persistent id. where: begins the messages of errors. set_state(value, state): whether it knows values of this
    kind and has given one its state.
    """

    def __init__(
        self,
        find: Callable[[str], Any],
        persistent: Callable[[Any], Any],
        where: str,
        set_state: Callable[[Any, Any], bool] = lambda value, state: False,
    ):
        self._find, self._persistent, self._where, self._set_state = find, persistent, where, set_state
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, file: BinaryIO) -> Any:
        """The value of the pickle. Raises FileError for a name that is refused; a malformed pickle raises any error."""
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name in _ARGUMENTS:
                self._stack.append(argument)
            elif opcode.name in _MAKE:
                self._stack.append(_MAKE[opcode.name]())
            else:
                _STEPS[opcode.name](self, argument)
        return self._stack.pop()

    def refuse(self, name: str) -> FileError:
        """The error for an object of the class or function `name`."""
        return FileError(self._where, _KINDS, f"an object of {name[:200]}", _CURE)

    def since_mark(self) -> list[Any]:
        return self.last(len(self._stack) - self._marks.pop())

    def last(self, count: int) -> list[Any]:
        values = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return values

    def mark(self, argument: Any) -> None:
        self._marks.append(len(self._stack))

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def extend(self, values: list[Any]) -> None:
        _is(list, self._stack[-1]).extend(values)

    def add(self, values: list[Any]) -> None:
        _is(set, self._stack[-1]).update(keys(values))

    def set_items(self, values: list[Any]) -> None:
        _is(dict, self._stack[-1]).update(zip(keys(values[::2]), values[1::2], strict=True))

    def push_dict(self, argument: Any) -> None:
        values = self.since_mark()
        self._stack.append({})
        self.set_items(values)

    def put(self, index: int | None) -> None:
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def look_up(self, name: str) -> None:
        found = self._find(name)
        if found is None:
            raise self.refuse(name)
        self._stack.append(found)

    def call(self, argument: Any) -> None:
        function, arguments = self.last(2)
        build = _is(Global, function).build
        if build is None:
            raise self.refuse(function.name)
        self._stack.append(build(*arguments))

    def set_state(self, argument: Any) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if type(target) is np.ndarray:
            target.__setstate__(state)
        elif type(target) is Namespace:
            vars(target).update({_is(str, name): value for name, value in state.items()})
        elif type(target) is OrderedDict:
            vars(target).update({name: state[name] for name in ("_metadata",) if name in state})
        elif self._set_state(target, state):
            return
        elif not isinstance(target, np.dtype) or state[1] not in ("<", "|"):
            raise ValueError(f"the state of a {type(target).__name__}")

    def persist(self, argument: Any) -> None:
        self._stack.append(self._persistent(self._stack.pop()))


def keys(values: Any) -> list[Any]:
    """`values`, if they may be keys of dicts or members of sets: none with an own hash, tuples of one level."""
    for value in values:
        for each in value if type(value) is tuple else (value,):
            if not isinstance(each, _KEYS):
                raise TypeError(f"a {type(each).__name__} in a key")
    return list(values)


def _is(kind: type[_T], value: Any) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value


_ARGUMENTS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip  # opcodes whose argument is the value
_MAKE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_LIST": list, "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple, "EMPTY_SET": set,
}  # fmt: skip
_STEPS: dict[str, Callable[[Machine, Any], Any]] = {
    "PROTO": lambda m, a: None,
    "FRAME": lambda m, a: None,
    "STOP": lambda m, a: None,
    "MARK": Machine.mark,
    "POP": lambda m, a: m.last(1),
    "POP_MARK": lambda m, a: m.since_mark(),
    "TUPLE": lambda m, a: m.push(tuple(m.since_mark())),
    "TUPLE1": lambda m, a: m.push(tuple(m.last(1))),
    "TUPLE2": lambda m, a: m.push(tuple(m.last(2))),
    "TUPLE3": lambda m, a: m.push(tuple(m.last(3))),
    "LIST": lambda m, a: m.push(m.since_mark()),
    "FROZENSET": lambda m, a: m.push(frozenset(keys(m.since_mark()))),
    "DICT": Machine.push_dict,
    "APPEND": lambda m, a: m.extend(m.last(1)),
    "APPENDS": lambda m, a: m.extend(m.since_mark()),
    "ADDITEMS": lambda m, a: m.add(m.since_mark()),
    "SETITEM": lambda m, a: m.set_items(m.last(2)),
    "SETITEMS": lambda m, a: m.set_items(m.since_mark()),
    "GLOBAL": lambda m, a: m.look_up(a.replace(" ", ".", 1)),
    "STACK_GLOBAL": lambda m, a: m.look_up(".".join(m.last(2))),
    "REDUCE": Machine.call,
    "NEWOBJ": Machine.call,
    "BUILD": Machine.set_state,
    "BINPERSID": Machine.persist,
    "MEMOIZE": Machine.put,
}
for _size in ("", "BIN", "LONG_BIN"):
    _STEPS |= {f"{_size}PUT": Machine.put, f"{_size}GET": Machine.get}
