"""Containers: Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Self

from ampkit.base.errors import ArgumentError, DTypeError, RangeError
from ampkit.core.arguments import shown
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor

from ..module import Module
from .fused import chain


class _Listed:
    """List methods over entries named "0", "1", ...: the base of Sequential, ModuleList and ParameterList."""

    _entries: dict[str, Any]
    _kind: type

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._entries.values()))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._of(dict(list(self._entries.items())[index]))
        return self._entries[self._name(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self._entries[self._name(index)] = self._checked(value)

    def __delitem__(self, index: int | slice) -> None:
        entries = list(self)
        del entries[index if isinstance(index, slice) else self._position(index)]
        self._replace_all(entries)

    def append(self, value: Any) -> Self:
        """Add an entry at the end."""
        self._entries[str(len(self))] = self._checked(value)
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add entries at the end."""
        for value in list(values):
            self.append(value)
        return self

    def insert(self, index: int, value: Any) -> None:
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
        self._entries.clear()
        self._entries.update((str(i), value) for i, value in enumerate(values))

    def _position(self, index: Any) -> int:
        if not hasattr(index, "__index__") or not -len(self) <= (at := index.__index__()) < len(self):
            raise RangeError(type(self).__name__, f"an index below {len(self)}", repr(index))
        return at % len(self)

    def _name(self, index: Any) -> str:
        return list(self._entries)[self._position(index)]

    def _checked(self, value: Any) -> Any:
        if not isinstance(value, self._kind):
            raise DTypeError(type(self).__name__, f"entries of type {self._kind.__name__}", f"a {type(value).__name__}")
        return value

    def _of(self, entries: dict[str, Any]) -> Any:
        return type(self)(entries.values())


class _Modules(_Listed, Module):
    _kind = Module

    @property
    def _entries(self) -> dict[str, Any]:
        return self._modules


class Sequential(_Modules):
    """One module after the other: `Sequential(a, b)` or `Sequential({"first": a, "second": b})`; x -> b(a(x))."""

    def __init__(self, *args: Any):
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.register_module(name, self._checked(module))
        else:
            self.extend(args)

    def forward(self, input: Any) -> Any:
        return chain(input, *self._modules.values())

    def _of(self, entries: dict[str, Any]) -> Any:
        return type(self)(entries)


class ModuleList(_Modules):
    """A list of modules, registered as "0", "1", ...; it has no forward."""

    def __init__(self, modules: Iterable[Module] | None = None):
        super().__init__()
        self.extend(modules or ())

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])


class ParameterList(_Listed, Module):
    """A list of Parameters, registered as "0", "1", ...; it has no forward."""

    _kind = Parameter

    def __init__(self, values: Iterable[Parameter] | None = None):
        super().__init__()
        self.extend(values or ())

    @property
    def _entries(self) -> dict[str, Any]:
        return self._parameters

    def extra_repr(self) -> str:
        return "\n".join(f"({name}): Parameter {list(p.shape)} {p.dtype.name}" for name, p in self._entries.items())


class ModuleDict(Module):
    """Modules by name; it has no forward."""

    def __init__(self, modules: Mapping[str, Module] | None = None):
        super().__init__()
        self.update(modules or {})

    def __getitem__(self, key: str) -> Module:
        if key not in self._modules:
            raise ArgumentError("ModuleDict", f"one of {', '.join(self._modules) or 'no names'}", repr(key))
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.register_module(key, module)

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._modules))

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def items(self) -> Any:
        """(name, module) pairs."""
        return self._modules.items()

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add modules, or replace those of the same name."""
        for name, module in _named("ModuleDict", modules).items():
            self[name] = module

    def pop(self, key: str) -> Module:
        """Remove a module and return it."""
        module = self[key]
        del self._modules[key]
        return module

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()


class ParameterDict(Module):
    """Parameters by name, with the methods of a mapping; it has no forward. A Tensor becomes a Parameter."""

    # Not a subclass of Mapping, which Sequential would take for a mapping of modules.
    __contains__, keys, values, items = Mapping.__contains__, Mapping.keys, Mapping.values, Mapping.items
    get, setdefault, update = Mapping.get, MutableMapping.setdefault, MutableMapping.update
    pop, popitem, clear = MutableMapping.pop, MutableMapping.popitem, MutableMapping.clear

    def __init__(self, parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None = None):
        super().__init__()
        self.update({} if parameters is None else _named("ParameterDict", parameters))

    def __getitem__(self, key: str) -> Parameter:
        if key not in self._parameters:
            raise _UnknownError("ParameterDict", f"one of {', '.join(self._parameters) or 'no names'}", repr(key))
        return self._parameters[key]

    def __setitem__(self, key: str, parameter: Tensor) -> None:
        entry = Parameter(parameter) if type(parameter) is Tensor else parameter
        if not isinstance(entry, Parameter):
            got = f"a {type(parameter).__name__}"
            raise DTypeError("ParameterDict", f"a Parameter or a Tensor as {key!r}", got)
        self.register_parameter(key, entry)

    def __delitem__(self, key: str) -> None:
        self[key]
        del self._parameters[key]

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._parameters))

    def copy(self) -> ParameterDict:
        """A new ParameterDict of the same Parameters."""
        return ParameterDict(self)

    def extra_repr(self) -> str:
        return "\n".join(f"({name}): Parameter {list(p.shape)} {p.dtype.name}" for name, p in self.items())


def _named(where: str, items: Any) -> dict[str, Any]:
    # A mapping or (name, item) pairs, as a dict.
    pairs = items.items() if hasattr(items, "items") else items
    found = list(pairs) if isinstance(pairs, Iterable) else [None]
    if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in found):
        raise DTypeError(where, "a mapping, or (name, item) pairs", shown(items))
    return dict(found)


class _UnknownError(ArgumentError, KeyError):
    # A KeyError too, which the methods of Mapping catch.
    __str__ = Exception.__str__
