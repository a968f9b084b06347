"""Run-time type checks of arguments against the annotations of the parameters, before the function runs.

`int` accepts an integer of 64 bits, `float` a real number, `bool` True or False, `str` a string, a class its
instances, `Sequence[int]` a sequence of integers; `|` separates alternatives. `Any` and every annotation that is not
named here accept any value: the function checks those itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import wraps
from inspect import Parameter, signature
from operator import index
from types import UnionType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..base.errors import AmpkitError, ArgumentError, DTypeError, NoTensorError, unquoted
from .tensor import Tensor

MOST = 2**63 - 1  # the largest integer argument: that of int64
_LONGEST = 2**16  # of a range that stands for a list of integers


class Kind(NamedTuple):
    """The type that a parameter accepts.

    description: as errors name it. types: classes whose instances are accepted without a further check. accepts: a
    predicate for values of other classes. whole: whether it accepts an int. converts: accepted values of other classes
    to what the function receives, or None.
    """

    description: str
    types: tuple[type, ...]
    accepts: Callable[[Any], bool]
    whole: bool = False
    converts: Callable[[Any], Any] | None = None

    def is_quick(self, value: Any) -> bool:
        """Whether `value` is accepted at first sight, as most are."""
        found = type(value)
        return found in self.types or (self.whole and found is int and -MOST <= value <= MOST)


def shown(value: Any) -> str:
    """`value` as text for an error: numbers and strings in full (at most 80 characters), else the type's name."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:77]}..."
    if isinstance(value, (list, tuple)) and all(type(item) in (bool, int, float, str) for item in value[:9]):
        return repr(value)[:80]
    return named(type_name(type(value)))


def type_name(kind: type) -> str:
    """The name of a class as errors show it: `torch.Tensor` for one that is named like ampkit's."""
    package = kind.__module__.partition(".")[0]
    is_foreign = package != "ampkit" and kind.__name__ in ("Tensor", "Parameter", "dtype")
    return f"{package}.{kind.__name__}" if is_foreign else kind.__name__


def named(name: str) -> str:
    """`name` with its indefinite article: "an array", "a list"."""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def is_whole(value: Any) -> bool:
    """Whether `value` is an integer (anything with `__index__`); True, False and bool tensors are not."""
    if isinstance(value, bool) or (isinstance(value, Tensor) and value.array.dtype == np.bool_):
        return False
    try:
        index(value)
    except TypeError:
        return False
    return True


def without_numpy(value: Any) -> Any:
    """A scalar or a 0-d array of NumPy as a Python number; other values as they are."""
    if isinstance(value, np.generic) or (type(value) is np.ndarray and not value.ndim):
        value = value.item()
        return float(value) if isinstance(value, (np.floating, ml_dtypes.bfloat16)) else value
    return value


def is_number(value: Any) -> bool:
    """Whether `value` is one real number of Python or NumPy; Tensors, arrays, strings and complex numbers are not."""
    if isinstance(value, (Tensor, str, bytes, complex, np.ndarray, np.complexfloating)):
        return False
    try:
        float(value)
    except OverflowError:
        return True
    except (TypeError, ValueError):
        return False
    return True


def _is_scalar(value: Any) -> bool:
    # A number, or a tensor or array of one, without a gradient that the number would lose.
    if isinstance(value, (Tensor, np.ndarray)):
        return not value.ndim and not getattr(value, "requires_grad", False)
    return is_number(value)


def _python_number(value: Any) -> Any:
    value = value.item() if isinstance(value, Tensor) else without_numpy(value)
    return value if isinstance(value, (int, float)) else float(value)


_SIMPLE = {
    "int": Kind("an integer", (), is_whole, True, index),
    "float": Kind("a number", (float,), _is_scalar, True, _python_number),
    "Bound": Kind("a number", (float,), _is_scalar, True, _python_number),
    "bool": Kind("True or False", (bool,), lambda value: isinstance(value, (int, np.bool_, np.integer)), False, bool),
    "str": Kind("text", (str,), lambda value: isinstance(value, str)),
    "None": Kind("None", (type(None),), lambda value: False),
    "Tensor": Kind("a Tensor", (Tensor,), lambda value: isinstance(value, Tensor)),
}


def _sequence_predicate(item: Kind | None, sized: bool) -> Callable[[Any], bool]:
    # Accepts a sequence (or, unless `sized`, any iterable) of `item`; the items of lists and tuples are checked.
    def accepts(value: Any) -> bool:
        if type(value) in (list, tuple):  # most are
            return item is None or all(type(one) in item.types or item.accepts(one) for one in value)
        if isinstance(value, Tensor):
            return item is None or item.types == (Tensor,)
        if isinstance(value, np.ndarray):
            value = value.tolist() if value.ndim == 1 else None
        if isinstance(value, (str, bytes, bytearray, memoryview, dict, type)) or not holds_items(value, sized):
            return False
        if isinstance(value, range) and item is not None:
            return item.whole and not value[_LONGEST:]
        if item is None or not hasattr(value, "__len__"):
            return True
        if item.whole and _is_container_of_others(value):
            return False
        return all(type(one) in item.types or item.accepts(one) for one in value)

    return accepts


def _is_container_of_others(value: Any) -> bool:
    # Whether it has indices and yet is no list, array or their like: nn.Sequential holds no numbers.
    return hasattr(value, "__getitem__") and not isinstance(value, Sequence) and not hasattr(value, "shape")


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, range) else value


def _has_length(value: Any) -> bool:
    # A length that counts indexed items: dicts are excluded, and a 0-d array has none.
    return isinstance(value, Sized) and not isinstance(value, dict) and getattr(value, "shape", True) != ()


def _plural(description: str) -> str:
    article, _, noun = description.partition(" ")
    return f"{noun}s" if article in ("a", "an") and " " not in noun else f"which each is {description}"


def holds_items(value: Any, sized: bool = False) -> bool:
    """Whether `value` can be iterated over; `sized`: and has a length and indices."""
    if isinstance(value, type):
        return False
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        return getattr(value, "shape", True) != ()  # a 0-d array has no length
    return not sized and hasattr(value, "__iter__")


def _kind(text: str, names: Mapping[str, Any]) -> Kind | None:
    # The Kind of an annotation without `|`; None if it accepts any value.
    if text in _SIMPLE:
        return _SIMPLE[text]
    head, _, rest = text.partition("[")
    if head in ("Sequence", "Iterable"):
        item = kind(rest[:-1], names)
        description = named(head.lower()) + (f" of {_plural(item.description)}" if item is not None else "")
        return Kind(description, (), _sequence_predicate(item, head == "Sequence"), converts=item and _listed)
    if head in ("Mapping", "MutableMapping"):
        return Kind("a mapping", (dict,), lambda value: isinstance(value, Mapping))
    if head == "set":
        return Kind("a set", (set,), lambda value: isinstance(value, set))
    if head == "Sized":
        return Kind("something with a length", (), _has_length)
    if head == "Callable":
        return Kind("a function", (), callable)
    first, *others = head.split(".")
    found = names.get(first)
    for name in others:
        found = getattr(found, name, None)
    if isinstance(found, type) and not rest and found.__module__.startswith("ampkit."):
        return Kind(named(head.rpartition(".")[2]), (found,), lambda value: isinstance(value, found))
    return None


def _alternatives(text: str) -> Iterator[str]:
    # The parts of an annotation between the `|` that stand outside of brackets.
    depth, start = 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and not depth:
            yield text[start:i].strip()
            start = i + 1
    yield text[start:].strip()


_MODULES = re.compile(r"(?:\w+\.)+(?=\w)")  # before the names in an annotation that is an object


def kind(annotation: Any, names: Mapping[str, Any]) -> Kind | None:
    """The Kind of an annotation, its classes looked up in `names`; None if it accepts any value."""
    if not isinstance(annotation, str):
        if annotation is Parameter.empty or not isinstance(annotation, (type, UnionType)):
            return None
        annotation = annotation.__name__ if isinstance(annotation, type) else _MODULES.sub("", str(annotation))
    found = [_kind(text, names) for text in _alternatives(annotation)]
    if None in found:
        return None
    kinds = [k for k in found if k is not None]
    if len(kinds) == 1:
        return kinds[0]
    types = tuple([t for k in kinds for t in k.types])
    description = " or ".join(k.description for k in kinds if k.description != "None")

    def convert(value: Any) -> Any:
        accepting = next(k for k in kinds if isinstance(value, k.types) or k.accepts(value))
        return value if accepting.converts is None else accepting.converts(value)

    whole = any(k.whole for k in kinds)
    return Kind(description, types, lambda value: any(k.accepts(value) for k in kinds), whole, convert)


def of_parameter(parameter: Parameter, names: Mapping[str, Any]) -> Kind | None:
    """The Kind of a parameter: by its annotation, or without one by the type of its float, bool or str default."""
    if parameter.annotation is parameter.empty:
        return _SIMPLE.get(type(parameter.default).__name__) if type(parameter.default) in (float, bool, str) else None
    return kind(parameter.annotation, names)


def error(where: str, name: str, wanted: Kind, value: Any) -> AmpkitError:
    """The error for a `value` that parameter `name` does not accept: ArgumentError for a bool, else DTypeError.

    The DTypeError is a NoTensorError where a Tensor is needed.
    """
    if wanted.description == "a Tensor":
        cure = None if value is None else "wrap it: ampkit.tensor(...)"
        got = "None" if value is None else type_name(type(value))
        return NoTensorError(where, f"a Tensor for `{name}`", got, cure)
    if "True or False" in wanted.description:
        return ArgumentError(where, f"{name} {wanted.description}", shown(value), unquoted(name, value))
    return DTypeError(where, f"{name} as {wanted.description}", shown(value), unquoted(name, value))


def checked(where: str, name: str, wanted: Kind, value: Any) -> Any:
    """`value` as the parameter `name` receives it: numbers of NumPy and of 0-d tensors are those of Python.

    Raises DTypeError or ArgumentError unless the parameter accepts it; integers must fit 64 bits.
    """
    if wanted.is_quick(value):
        return value
    if not wanted.accepts(value):
        raise error(where, name, wanted, value)
    if wanted.converts is not None:
        value = wanted.converts(value)
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, int) and not -MOST - 1 <= item <= MOST:
            raise ArgumentError(where, f"{name} within 64 bits", shown(value))
    return value


class Checks:
    """The checks of a function's arguments: by position, by name, and of the items of `*args`."""

    def __init__(self, function: Callable[..., Any]):
        names = getattr(function, "__globals__", {})
        self.by_name: dict[str, Kind] = {}
        self.positional: list[tuple[int, str, Kind]] = []  # the place among the arguments, of those that are checked
        self.positional_count = 0
        self.variadic: tuple[str, Kind] | None = None
        for p in signature(function).parameters.values():
            found = kind(p.annotation, names)
            if found is not None and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                self.by_name[p.name] = found
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                if found is not None:
                    self.positional.append((self.positional_count, p.name, found))
                self.positional_count += 1
            elif p.kind is Parameter.VAR_POSITIONAL and found is not None:
                self.variadic = (p.name, found)

    def __call__(self, where: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The arguments of a call, checked and converted as `checked` does; `where` names the function in errors."""
        given: list[Any] | None = None
        for place, name, wanted in self.positional:
            if place >= len(args):
                break
            value = args[place]
            if type(value) not in wanted.types and (made := checked(where, name, wanted, value)) is not value:
                given = list(args) if given is None else given
                given[place] = made
        if self.variadic is not None:
            for value in args[self.positional_count :]:
                checked(where, *self.variadic, value)
        for name, value in kwargs.items():
            if name in self.by_name and (made := checked(where, name, self.by_name[name], value)) is not value:
                kwargs = {**kwargs, name: made}
        return args if given is None else given, kwargs


def checked_constructor(cls: type) -> None:
    """Wrap the `__init__` that `cls` itself defines so that it checks its arguments; errors name the class."""
    function: Any = cls.__dict__.get("__init__")
    if function is None or not cls.__module__.startswith("ampkit."):
        return
    checks: list[Checks] = []  # built at the first call: annotations may name classes that are defined later

    @wraps(function)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if not checks:
            checks.append(Checks(function))
        given, kwargs = checks[0](type(self).__name__, (self, *args), kwargs)
        function(*given, **kwargs)

    cls.__init__ = __init__  # type: ignore[misc]  # the checked constructor
