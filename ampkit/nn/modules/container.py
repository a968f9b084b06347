"""Containers: Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from ampkit.base.errors import ArgumentError, DTypeError, RangeError, StateError
from ampkit.core.arguments import holds_items, is_whole, shown
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_methods

from ..factory import is_size
from ..module import MemberError, Module
from .fused import chain

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]

_Entry = TypeVar("_Entry")


class _Container(Module):
    # A module whose entries are all Modules, or all Parameters.

    _kind: ClassVar[type] = Module

    @property
    def _entries(self) -> dict[str, Any]:
        return self._modules if self._kind is Module else self._parameters

    def __len__(self) -> int:
        return len(self._entries)

    def extra_repr(self) -> str:
        rows = self._parameters.items()
        return "\n".join(f"({name}): Parameter {list(p.shape)} {p.dtype.name}" for name, p in rows if p is not None)


class _Listed(_Container):
    # The methods of a list over entries named "0", "1", ...

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._entries.values()))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._of(dict(list(self._entries.items())[index]))
        return self._entries[self._name(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self._store(self._name(index), self._checked(value))

    def __delitem__(self, index: int | slice) -> None:
        entries = list(self)
        del entries[index if isinstance(index, slice) else self._position(index)]
        self._replace_all(entries)

    def append(self, value: Any) -> Self:
        """Add an entry at the end."""
        self._store(str(len(self)), self._checked(value))
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add entries at the end."""
        for value in list(values):
            self.append(value)
        return self

    def insert(self, index: int, value: Any) -> Any:
        """Insert an entry before position `index`."""
        entries = list(self)
        entries.insert(index, self._checked(value))
        self._replace_all(entries)

    def pop(self, index: int = -1) -> Any:
        """Remove an entry and return it."""
        value = self[index]
        del self[index]
        return value

    def _replace_all(self, values: list[Any]) -> None:
        for table in (self._parameters, self._modules):
            table.clear()
        for i, value in enumerate(values):
            self._store(str(i), value)

    def _store(self, name: str, value: Any) -> None:
        self._set_member(self._entries, name, value)

    def _position(self, index: Any) -> int:
        if not is_whole(index) or not -len(self) <= (at := operator.index(index)) < len(self):
            raise RangeError(type(self).__name__, f"an index below {len(self)}", shown(index))
        return at % len(self)

    def _name(self, index: Any) -> str:
        return list(self._entries)[self._position(index)]

    def _checked(self, value: Any) -> Any:
        if not isinstance(value, self._kind):
            raise DTypeError(type(self).__name__, f"entries of type {self._kind.__name__}", f"a {type(value).__name__}")
        return value

    def _of(self, entries: dict[str, Any]) -> Any:
        kind: Any = type(self)
        return kind(entries.values())


class Sequential(_Listed):
    """One module after the other: `Sequential(a, b)` or `Sequential({"first": a, "second": b})`; x -> b(a(x))."""

    def __init__(self, *args: Any):
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.register_module(name, self._checked(module))
        else:
            self.extend(args)

    def forward(self, input: Any) -> Any:
        try:
            return chain(input, *self._entries.values())
        except TypeError:
            if empty := [name for name, entry in self._entries.items() if entry is None]:
                raise StateError("Sequential", "a module in each entry", f"None in {empty[0]!r}") from None
            raise

    def insert(self, index: int, value: Module) -> Self:
        """Insert a module before position `index`, from -len to len; returns self. Raises RangeError for another."""
        if not is_whole(index) or not -len(self) <= index <= len(self):
            raise RangeError("Sequential.insert", f"an index from {-len(self)} to {len(self)}", shown(index))
        super().insert(index, value)
        return self

    def _of(self, entries: dict[str, Any]) -> Any:
        return type(self)(entries)

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *other) if isinstance(other, Sequential) else NotImplemented

    def __iadd__(self, other: Sequential) -> Self:
        return self.extend(other) if isinstance(other, Sequential) else NotImplemented

    def __mul__(self, times: int) -> Sequential:
        return Sequential(*list(self) * _times(times))

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Self:
        return self.extend(list(self) * (_times(times) - 1))


def _times(times: Any) -> int:
    if not is_size(times):
        raise ArgumentError("Sequential", "a positive integer as factor", shown(times))
    return int(times)


class ModuleList(_Listed):
    """A list of modules, or None for some of them, registered as "0", "1", ...; it has no forward."""

    def _checked(self, value: Any) -> Any:
        return None if value is None else super()._checked(value)

    def __init__(self, modules: Iterable[Module | None] | None = None):
        super().__init__()
        self.extend(modules or ())

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other]) if holds_items(other) else NotImplemented

    def __iadd__(self, other: Iterable[Module]) -> Self:
        return self.extend(other) if holds_items(other) else NotImplemented


class ParameterList(_Listed):
    """A list of Parameters, or of ParameterLists for some, registered as "0", "1", ...; it has no forward.

    A Tensor becomes a Parameter.
    """

    _kind = Parameter

    def __init__(self, values: Iterable[Tensor | Module] | None = None):
        super().__init__()
        self.extend(values or ())

    @property
    def _entries(self) -> dict[str, Any]:
        entries = self._parameters | self._modules if self._modules else self._parameters
        return {str(i): entries[str(i)] for i in range(len(entries)) if str(i) in entries}

    def _store(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def _checked(self, value: Any) -> Any:
        entry = Parameter(value, value.is_floating_point()) if type(value) is Tensor else value
        return entry if isinstance(entry, Module) else super()._checked(entry)

    def __iadd__(self, other: Iterable[Tensor | Module]) -> Self:
        return self.extend(other) if holds_items(other) else NotImplemented


class _Named(_Container, Generic[_Entry]):
    # The methods of a dict. Not a subclass of Mapping, which Sequential would take for a mapping of modules.

    keys: Any = Mapping.keys
    values: Any = Mapping.values
    items: Any = Mapping.items
    pop: Any = MutableMapping.pop

    def __getitem__(self, key: str) -> _Entry:
        if key not in self:
            raise MemberError(type(self).__name__, f"one of {', '.join(self._entries) or 'no names'}", shown(key))
        return self._entries[key]

    def __delitem__(self, key: str) -> None:
        self[key]
        del self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._entries

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()


class ModuleDict(_Named[Module]):
    """Modules by name; it has no forward."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None):
        super().__init__()
        if modules is not None:  # a subclass's own `update` may need what its constructor sets after this
            self.update(modules)

    def __setitem__(self, key: str, module: Module) -> None:
        self.register_module(key, module)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add modules, or replace those of the same name."""
        for name, module in _named("ModuleDict", modules).items():
            self[name] = module


class ParameterDict(_Named[Parameter]):
    """Parameters by name, with the methods of a mapping; it has no forward. A Tensor becomes a Parameter."""

    _kind = Parameter

    get: Any = Mapping.get
    setdefault: Any = MutableMapping.setdefault
    popitem: Any = MutableMapping.popitem

    def __init__(self, parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None = None):
        super().__init__()
        self.update(() if parameters is None else parameters)

    def __setitem__(self, key: str, parameter: Tensor) -> None:
        entry = Parameter(parameter) if type(parameter) is Tensor else parameter
        if not isinstance(entry, Parameter):
            raise DTypeError("ParameterDict", f"a Parameter or a Tensor as {key!r}", f"a {type(parameter).__name__}")
        self.register_parameter(key, entry)

    def update(self, parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (), /, **named: Tensor) -> None:
        """Add Parameters, or replace those of the same name; new ones of a plain dict are added in the order of names.

        That is PyTorch's order, in which the states of optimizers are saved.
        """
        given = _named("ParameterDict", parameters)
        if type(parameters) is dict:
            given = dict(sorted(given.items()))
        for name, parameter in {**given, **named}.items():
            self[name] = parameter

    def copy(self) -> ParameterDict:
        """A new ParameterDict of the same Parameters."""
        return ParameterDict(self.items())


check_methods(_Listed, ModuleDict)


def _named(where: str, items: Any) -> dict[str, Any]:
    # A mapping or (name, item) pairs, as a dict.
    pairs = items.items() if hasattr(items, "items") else items
    found: list[Any] = list(pairs) if holds_items(pairs) else [None]
    if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in found):
        raise DTypeError(where, "a mapping, or (name, item) pairs", shown(items))
    return dict(found)
