"""A machine for pickles that builds values by functions of a table and calls nothing else.

Python's own unpickler imports and calls what a pickle names. This one looks names up in its caller's table, and refuses
all others. So no code of a file runs, whatever bytes it has.

A value that a tensor may be a view of is built once and never changed: an array of NumPy is an `Unbuilt` until its
values are known, and can be used only then. What a pickle copies again and again is counted, so that a short one does
not fill the memory.
"""

from __future__ import annotations

import io
import pickletools
from argparse import Namespace
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sized
from typing import Any

import numpy as np

from ..base.errors import AmpkitError, FileError
from ..core.tensor import Tensor
from .foreign_tensor import ForeignTensor

_KEYS = (str, bytes, int, float, complex, type(None), np.dtype, np.generic, Tensor)
_KEY_PARTS = 100  # the most values in a key that is a tuple: each look-up reads all of them
_KEY_BITS = 64  # of an integer that is a key: hashes of longer ones can be made equal
_KINDS = "tensors, numbers, strings and plain containers"
_CURE = "load it in PyTorch, with its classes, and save its state_dict()"
_COPIES, _FEW = 16, 2**20  # what a pickle may copy: so many times its own bytes, and so many elements more


class RefusedError(Exception):
    """Raised for a value that is no data; its text says what it is."""


class Global:
    """What a pickle names: `build` makes a value from the arguments that the pickle calls it with."""

    __slots__ = ("build", "name")

    def __init__(self, name: str, build: Callable[..., Any] | None):
        self.name, self.build = name, build


class Unbuilt:
    """An array before the pickle has given its values, and where the pickle keeps it meanwhile."""

    __slots__ = ("build", "places")

    def __init__(self, build: Callable[[Any], Any]):
        self.build, self.places = build, list[int]()


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
        self._states: list[Any] = []  # of modules
        self._unbuilt, self._left = 0, 0

    def run(self, file: io.BytesIO) -> Any:
        """The value of the pickle. Raises FileError for a name that is refused; a malformed pickle raises any error."""
        self._left = _COPIES * file.getbuffer().nbytes + _FEW
        try:
            for opcode, argument, _ in pickletools.genops(file):
                if opcode.name in _ARGUMENTS:
                    self._stack.append(argument)
                elif opcode.name in _MAKE:
                    self._stack.append(_MAKE[opcode.name]())
                else:
                    _STEPS[opcode.name](self, argument)
        except RefusedError as error:
            raise self.refuse(str(error)) from None
        except AmpkitError as error:  # as of a tensor where a list belongs
            if str(error).startswith(self._where):
                raise
            raise ValueError(str(error).splitlines()[0]) from error
        return self._finished(*self.last(1))

    def refuse(self, got: str) -> FileError:
        """The error for a value that is no data."""
        return FileError(self._where, _KINDS, got[:200], _CURE)

    def since_mark(self) -> list[Any]:
        mark = self._marks.pop()
        return self._taken(len(self._stack) - mark)

    def last(self, count: int) -> list[Any]:
        if self._marks and len(self._stack) - count < self._marks[-1]:
            raise ValueError("fewer values than an opcode takes")
        return self._taken(count)

    def _taken(self, count: int) -> list[Any]:
        begin = len(self._stack) - count
        if begin < 0 or count < 0:
            raise ValueError("fewer values than an opcode takes")
        values = self._stack[begin:]
        del self._stack[begin:]
        return values

    def mark(self, argument: Any) -> None:
        self._marks.append(len(self._stack))

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def extend(self, values: list[Any]) -> None:
        into = _is((list, deque), self._stack[-1])
        into.extend(_shallow(into, values))

    def add(self, values: list[Any]) -> None:
        _is(set, self._stack[-1]).update(keys(values))

    def set_items(self, values: list[Any]) -> None:
        into = _is(dict, self._stack[-1])
        into.update(zip(keys(values[::2]), _shallow(into, values[1::2]), strict=True))

    def push_dict(self, argument: Any) -> None:
        values = self.since_mark()
        self._stack.append({})
        self.set_items(values)

    def put(self, index: int | None) -> None:
        index, value = len(self._memo) if index is None else index, self._stack[-1]
        if type(value) is Unbuilt:
            value.places.append(index)
        self._memo[index] = value

    def get(self, index: int) -> None:
        value = self._memo[index]
        if type(value) is Unbuilt:
            raise ValueError("an array that is used before it has values")
        self._stack.append(value)

    def look_up(self, name: str) -> None:
        found = self._find(name)
        if found is None:
            raise _unknown(name)
        self._stack.append(found)

    def call(self, argument: Any) -> None:
        function, arguments = self.last(2)
        build = _is(Global, function).build
        if build is None:
            raise _unknown(function.name)
        self._spend(_is(tuple, arguments))
        made = build(*arguments)
        self._unbuilt += type(made) is Unbuilt
        self._stack.append(made)

    def set_state(self, argument: Any) -> None:
        target, state = self.last(2)
        self._stack.append(target)
        if type(target) is Unbuilt:
            self._built(target, state)
        elif type(target) is Namespace:
            vars(target).update({_is(str, name): value for name, value in _is(dict, state).items()})
        elif type(target) is OrderedDict:
            vars(target).update({name: value for name, value in _is(dict, state).items() if name == "_metadata"})
        elif isinstance(target, np.dtype):
            if _is(tuple, state)[1] not in ("<", "|", "="):
                raise RefusedError("an array of NumPy in the other byte order")
        elif self._set_state(target, state):
            self._states.append(state)
        else:
            raise ValueError(f"the state of a {type(target).__name__}")

    def _built(self, target: Unbuilt, state: Any) -> None:
        self._spend(_is(tuple, state))
        made = self._stack[-1] = target.build(state)
        for place in target.places:
            if self._memo[place] is target:
                self._memo[place] = made
        self._unbuilt -= 1

    def _spend(self, arguments: tuple[Any, ...]) -> None:
        # A function of the table copies its arguments at most once.
        self._left -= sum(len(each) for each in arguments if isinstance(each, Sized) and not isinstance(each, _TENSORS))
        if self._left < 0:
            raise ValueError("many copies of its values")

    def persist(self, argument: Any) -> None:
        self._stack.append(self._persistent(*self.last(1)))

    def _finished(self, value: Any) -> Any:
        # A name is there to be called: a function or a class is no value.
        if self._unbuilt:
            raise ValueError("an array without values")
        if found := next((each for each in _all_in([value, self._states]) if type(each) is Global), None):
            raise self.refuse(f"an object of {found.name}")
        return value


_TENSORS = (Tensor, ForeignTensor)


def _unknown(name: str) -> RefusedError:
    return RefusedError(f"an object of {name}")


def _all_in(value: Any) -> Iterator[Any]:
    """`value` and all that its containers hold, each object once; not recursive, since files nest at will."""
    seen, left = set[int](), [value]
    while left:
        each = left.pop()
        yield each
        each = vars(each) if type(each) is Namespace else each
        if isinstance(each, _CONTAINERS) and id(each) not in seen:
            seen.add(id(each))
            left.extend(each.values() if isinstance(each, dict) else each)


_CONTAINERS = (list, tuple, dict, set, frozenset, deque)


def keys(values: Any) -> list[Any]:
    """`values`, if they may be keys of dicts or members of sets: none with an own hash, and small tuples of them."""
    for value in values:
        left, count = [value], 0
        while left:
            each = left.pop()
            count += 1
            if isinstance(each, tuple) and count <= _KEY_PARTS:
                left.extend(each)
            elif not isinstance(each, _KEYS) or (type(each) is int and each.bit_length() > _KEY_BITS):
                raise TypeError(f"a {type(each).__name__} in a key")
            if len(left) > _KEY_PARTS:
                raise TypeError("a long tuple in a key")
    return list(values)


def _shallow(into: Any, values: list[Any]) -> list[Any]:
    """`values`, if `into` may hold them: Python frees deques in deques, and default dicts, by recursion in C."""
    if isinstance(into, (deque, defaultdict)) and any(isinstance(each, (deque, defaultdict)) for each in values):
        raise RefusedError(f"a {type(into).__name__} within another")
    return values


def _is(kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} where another kind of value belongs")
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
