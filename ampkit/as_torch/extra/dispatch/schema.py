"""Schemas of operators, `name(Tensor x, int n=1, *, float? eps=None) -> Tensor`: the arguments and their defaults."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from itertools import accumulate
from typing import Any, NamedTuple

from ....base.errors import ArgumentError

_HEAD = re.compile(r"(?:(?P<space>\w+)::)?(?P<name>\w+)(?:\.(?P<overload>\w+))?\s*(?P<rest>\(.*)?", re.DOTALL)
_ARGUMENT = re.compile(r"(?P<type>.*?)\s*\b(?P<name>\w+)\s*(?:=\s*(?P<default>.+))?", re.DOTALL)
_REQUIRED = Parameter.empty


class Argument(NamedTuple):
    """An argument: its type as text, its default or `Parameter.empty`, and whether it is given by keyword only."""

    name: str
    type: str
    default: Any
    kwarg_only: bool


class Schema(NamedTuple):
    """The name of an operator and its arguments."""

    name: str
    overload_name: str
    arguments: Sequence[Argument]
    text: str

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Values for a kernel, whose names of arguments may be others: all but keyword-only ones by position."""
        positional = [argument for argument in self.arguments if not argument.kwarg_only]
        names = {argument.name for argument in self.arguments}
        if len(args) > len(positional) or not kwargs.keys() <= names - {a.name for a in positional[: len(args)]}:
            got = ", ".join([f"{len(args)} by position", *kwargs])
            raise ArgumentError(self.name, f"the arguments of {self.text}", got)
        out, by_name = list(args), {}
        for argument in [*positional[len(args) :], *(a for a in self.arguments if a.kwarg_only)]:
            value = kwargs.get(argument.name, argument.default)
            if value is _REQUIRED:
                raise ArgumentError(self.name, f"the arguments of {self.text}", f"no {argument.name}")
            if argument.kwarg_only:
                by_name[argument.name] = value
            else:
                out.append(value)
        return out, by_name


def _split(text: str) -> list[str]:
    """The parts between commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _value(text: str | None) -> Any:
    if text is None:
        return _REQUIRED
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError):
        return text.strip()  # the name of an enumeration, as Mean


def parse(text: str) -> Schema:
    """The schema of a text. Raises ArgumentError for another one."""
    head = _HEAD.fullmatch(text.strip())
    if head is None or not head["rest"]:
        raise ArgumentError("define", "a schema, as 'name(Tensor x, int n=1) -> Tensor'", repr(text))
    depths = list(accumulate((letter == "(") - (letter == ")") for letter in head["rest"]))
    end = depths.index(0) if 0 in depths else len(depths)
    found: list[Argument] = []
    kwarg_only = False
    for part in _split(head["rest"][1:end]):
        if part == "*":
            kwarg_only = True
            continue
        match = _ARGUMENT.fullmatch(part)
        if match is None:
            raise ArgumentError("define", "arguments as 'int n=1'", repr(part))
        found.append(Argument(match["name"], match["type"], _value(match["default"]), kwarg_only))
    space = f"{head['space']}::" if head["space"] else ""
    return Schema(f"{space}{head['name']}", head["overload"] or "", tuple(found), text.strip())


def of_function(name: str, function: Callable[..., Any]) -> Schema:
    """The schema of a Python function."""
    parameters = signature(function).parameters.values()
    found = [Argument(p.name, "Any", p.default, p.kind is Parameter.KEYWORD_ONLY) for p in parameters]
    return Schema(name, "", tuple(found), f"{name}({', '.join(argument.name for argument in found)})")
