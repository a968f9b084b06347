"""Checks of arguments against the annotations of the parameters, before anything runs.

`int` takes a whole number that 64 bits hold, `float` a number, `bool` True or False, `str` text, a class its instances,
`Sequence[int]` a sequence of such; alternatives are separated by `|`. `Any` and what is not named here takes all: the
function checks those itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from functools import wraps
from inspect import Parameter, signature
from operator import index
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import AmpkitError, ArgumentError, DTypeError, unquoted
from .tensor import Tensor

MOST = 2**63 - 1  # the largest integer that an argument can be: that of int64


class Kind(NamedTuple):
    """What a parameter takes: a description, the types that always fit, and a predicate for values of other types."""

    words: str
    types: tuple[type, ...]
    takes: Callable[[Any], bool]


def shown(value: Any) -> str:
    """A value as errors name it: numbers and text in full, of others the type."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:77]}..."
    if isinstance(value, (list, tuple)) and all(type(item) in (bool, int, float, str) for item in value[:9]):
        return repr(value)[:80]
    return named(type(value).__name__)


def named(name: str) -> str:
    """A name with its article."""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def is_whole(value: Any) -> bool:
    """Whether `value` is an integer; True and False are none."""
    if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == np.bool_):
        return False
    try:
        index(value)
    except TypeError:
        return False
    return True


def is_number(value: Any) -> bool:
    """Whether `value` is one real number of Python or NumPy."""
    if isinstance(value, (Tensor, str, bytes, complex, np.ndarray)):
        return False
    try:
        float(value)
    except OverflowError:
        return True
    except (TypeError, ValueError):
        return False
    return True


def _is_switch(value: Any) -> bool:
    return isinstance(value, (int, np.bool_, np.integer))


def _nothing(value: Any) -> bool:
    return False


_SIMPLE = {
    "int": Kind("an integer", (), is_whole),
    "float": Kind("a number", (float,), is_number),
    "bool": Kind("True or False", (bool,), _is_switch),
    "str": Kind("text", (str,), lambda value: isinstance(value, str)),
    "None": Kind("None", (type(None),), _nothing),
    "Tensor": Kind("a Tensor", (Tensor,), lambda value: isinstance(value, Tensor)),
}


def _several(item: Kind | None, sized: bool) -> Callable[[Any], bool]:
    def takes(value: Any) -> bool:
        if isinstance(value, Tensor):
            return item is None or item.types == (Tensor,)
        if isinstance(value, np.ndarray):
            value = value.tolist() if value.ndim == 1 else None
        if isinstance(value, (str, bytes, dict, type)) or not _holds_items(value, sized):
            return False
        listed = isinstance(value, (list, tuple)) and item is not None
        return not listed or all(type(one) in item.types or item.takes(one) for one in value)  # type: ignore[union-attr]

    return takes


def _has_length(value: Any) -> bool:
    # Of items by number: a dict has none, and a 0-d array no length.
    return isinstance(value, Sized) and not isinstance(value, dict) and getattr(value, "shape", True) != ()


def _plural(words: str) -> str:
    article, _, noun = words.partition(" ")
    return f"{noun}s" if article in ("a", "an") and " " not in noun else f"which each is {words}"


def _holds_items(value: Any, sized: bool) -> bool:
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        return getattr(value, "shape", True) != ()  # a 0-d array has no length
    return not sized and hasattr(value, "__iter__")


def _kind(text: str, names: Mapping[str, Any]) -> Kind | None:
    # The kind of an annotation without `|`; None takes all.
    if text in _SIMPLE:
        return _SIMPLE[text]
    head, _, rest = text.partition("[")
    if head in ("Sequence", "Iterable"):
        item = kind(rest[:-1], names)
        words = named(head.lower()) + (f" of {_plural(item.words)}" if item is not None else "")
        return Kind(words, (), _several(item, head == "Sequence"))
    if head == "Mapping":
        return Kind("a mapping", (dict,), lambda value: isinstance(value, Mapping))
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
    depth, start = 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and not depth:
            yield text[start:i].strip()
            start = i + 1
    yield text[start:].strip()


def kind(annotation: Any, names: Mapping[str, Any]) -> Kind | None:
    """What a parameter with this annotation takes, classes being looked up in `names`; None for all."""
    if not isinstance(annotation, str):
        return None
    found = [_kind(text, names) for text in _alternatives(annotation)]
    if None in found:
        return None
    kinds = [k for k in found if k is not None]
    if len(kinds) == 1:
        return kinds[0]
    types = tuple([t for k in kinds for t in k.types])
    words = " or ".join(k.words for k in kinds if k.words != "None")
    return Kind(words, types, lambda value: any(k.takes(value) for k in kinds))


def of_parameter(parameter: Parameter, names: Mapping[str, Any]) -> Kind | None:
    """What a parameter takes: by its annotation, or where it has none, as its default is a float, a switch or text."""
    if parameter.annotation is parameter.empty:
        return _SIMPLE.get(type(parameter.default).__name__) if type(parameter.default) in (float, bool, str) else None
    return kind(parameter.annotation, names)


def error(where: str, name: str, wanted: Kind, value: Any) -> AmpkitError:
    """What is wrong with a value that a parameter does not take."""
    if wanted.words == "a Tensor":
        cure = None if value is None else "wrap it: ampkit.tensor(...)"
        return DTypeError(where, f"a Tensor for `{name}`", "None" if value is None else type(value).__name__, cure)
    if "True or False" in wanted.words:
        return ArgumentError(where, f"{name} {wanted.words}", shown(value), unquoted(name, value))
    return DTypeError(where, f"{name} as {wanted.words}", shown(value), unquoted(name, value))


def check(where: str, name: str, wanted: Kind, value: Any) -> None:
    """Nothing for a value that a parameter takes. Raises DTypeError or ArgumentError for others."""
    if type(value) in wanted.types:
        return
    if not wanted.takes(value):
        raise error(where, name, wanted, value)
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, int) and not -MOST - 1 <= item <= MOST:
            raise ArgumentError(where, f"{name} within 64 bits", shown(value))


class Checks:
    """The kinds of a function's parameters: by position, by name, and of `*args`."""

    def __init__(self, function: Callable[..., Any]):
        names = getattr(function, "__globals__", {})
        self.by_name: dict[str, Kind] = {}
        self.by_place: list[tuple[str, Kind | None]] = []
        self.rest: tuple[str, Kind] | None = None
        for p in signature(function).parameters.values():
            found = kind(p.annotation, names)
            if found is not None and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                self.by_name[p.name] = found
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                self.by_place.append((p.name, found))
            elif p.kind is Parameter.VAR_POSITIONAL and found is not None:
                self.rest = (p.name, found)
        self.places = len(self.by_place)
        while self.by_place and self.by_place[-1][1] is None:
            self.by_place.pop()

    def __call__(self, where: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check the arguments of a call."""
        for (name, wanted), value in zip(self.by_place, args, strict=False):
            if wanted is not None and type(value) not in wanted.types:
                check(where, name, wanted, value)
        if self.rest is not None:
            for value in args[self.places :]:
                check(where, *self.rest, value)
        for name in kwargs.keys() & self.by_name if kwargs else ():
            check(where, name, self.by_name[name], kwargs[name])


def checked_constructor(cls: type) -> None:
    """Have the `__init__` that `cls` defines check its arguments; errors name the class of what is made."""
    function: Any = cls.__dict__.get("__init__")
    if function is None or not cls.__module__.startswith("ampkit."):
        return
    checks: list[Checks] = []  # made at the first call: annotations name classes that are defined later

    @wraps(function)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if not checks:
            checks.append(Checks(function))
        checks[0](type(self).__name__, (self, *args), kwargs)
        function(self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[misc]
