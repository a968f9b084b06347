"""PyTorch's arguments that the functions themselves do not read, handled once, in generated source.

Every op and function with a parameter `dim` also accepts `axis`, its other name in PyTorch; OTHER_NAMES has more.
`CompatArg` annotates a parameter that callers of PyTorch pass and that never reaches the function: `inplace` writes the
result into the first tensor; `layout`, `sparse` and their like are ignored, since they change no value (gradients are
dense); `weight` of `mse_loss` and its like raises unless it has its default; `size_average` and `reduce` are translated
to `reduction`. Every op and function also takes `out`, a tensor that the result is written into.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from ..base.errors import ArgumentError, switch
from .autograd.inplace import change, into
from .dispatch import overrides

CompatArg: TypeAlias = Any
Parameters = Mapping[str, inspect.Parameter]

OTHER_NAMES = {
    "axis": "dim", "keepdims": "keepdim", "indices": "indices_or_sections", "sections": "indices_or_sections",
}  # fmt: skip
REFUSED = {
    "weight": 'weigh the loss of each element: (loss(input, target, reduction="none") * weight).mean()',
}
# Further arguments of PyTorch's creation functions; they change no values.
_CREATION = {"layout": None, "pin_memory": False, "memory_format": None}
_SHAPES = {"shape", "size", "dims", "repeats"}  # variadic numbers that PyTorch also takes as one sequence by this name


class _Missing:
    def __repr__(self) -> str:
        return "<required>"


MISSING = _Missing()


def is_passed_on(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is passed to the function; a `CompatArg` is not."""
    return bool(parameter.annotation != "CompatArg")


def with_compat_args(parameters: Parameters) -> list[inspect.Parameter]:
    """`parameters` and the compatibility arguments that go with them, in an order that Python accepts.

    The added ones are positional where they can be: Python looks up the defaults of keyword-only ones in a dict at
    every call.
    """
    kind = inspect.Parameter
    more = [word for word, name in OTHER_NAMES.items() if name in parameters and word not in parameters]
    more += [] if "out" in parameters else ["out"]
    if {"dtype", "device", "requires_grad"} <= set(parameters):
        more += [word for word in _CREATION if word not in parameters]
    found = list(parameters.values())
    star = next((p for p in found if p.kind is p.VAR_POSITIONAL), None)
    if star is not None and star.name in _SHAPES:
        more.append(star.name)
        found[found.index(star)] = star.replace(name=f"_{star.name}")
    among = kind.POSITIONAL_OR_KEYWORD if star is None else kind.KEYWORD_ONLY
    added = [kind(word, among, default=_CREATION.get(word), annotation="CompatArg") for word in more]
    at = next((i for i, p in enumerate(found) if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD)), len(found))
    found = found[:at] + added + found[at:]
    loose = False  # a parameter that has another name needs a default, and so do those after it
    for i, p in enumerate(found):
        loose = loose or p.name in OTHER_NAMES.values()
        if loose and p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD:
            found[i] = p.replace(default=MISSING)
    return found


def prologue(name: str, given: list[inspect.Parameter], function: str) -> Iterator[str]:
    """Yield the source lines that handle the compatibility arguments before `function` is called.

    `given` is the result of `with_compat_args`; the lines use the names of `namespace`.
    """
    names = {p.name: p for p in given}
    if "inplace" in names and not is_passed_on(names["inplace"]):
        first, *others = [p.name for p in given if is_passed_on(p)]
        row = ", ".join([first, *(f"{word}={word}" for word in others)])
        yield f"    if inplace is not False and _switch({name!r}, 'inplace', inplace):"
        yield f"        return _change({function}, {row})"
    for word, parameter in OTHER_NAMES.items():
        if word in names and parameter in names and not is_passed_on(names[word]):
            yield f"    if {word} is not None: {parameter} = {word}"
    for word in _SHAPES & {p.name for p in given if p.kind is p.KEYWORD_ONLY and f"_{p.name}" in names}:
        yield f"    if {word} is not None: _{word} = ({word},)"
    for word in REFUSED:
        if word in names and not is_passed_on(names[word]):
            yield f"    if {word} is not None and {word} is not False: _refuse({name!r}, {word!r}, {word})"
    if "size_average" in names and not is_passed_on(names["size_average"]):
        yield "    if size_average is not None or reduce is not None: reduction = _reduction(size_average, reduce)"
    needed = [p.name for p in given if p.default is MISSING]
    if needed:
        row = " or ".join(f"{n} is _missing" for n in needed)
        yield f"    if {row}: _raise_missing({name!r}, {', '.join(f'{n}={n}' for n in needed)})"
    if "out" in names and not is_passed_on(names["out"]):
        yield f"    if out is not None: return _into({name!r}, out, {function}, {_arguments(given)})"


def _arguments(given: list[inspect.Parameter]) -> str:
    # The source of the arguments that pass the parameters on: by name, but for those that `*args` follow.
    star, parts = any(p.kind is p.VAR_POSITIONAL for p in given), []
    for p in filter(is_passed_on, given):
        lead = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        by_place = lead or p.kind is p.POSITIONAL_ONLY or (star and p.kind is p.POSITIONAL_OR_KEYWORD)
        parts.append(f"{lead}{p.name}" if by_place else f"{p.name}={p.name}")
    return ", ".join(parts)


def parameter_list(given: list[inspect.Parameter]) -> str:
    """The source of a parameter list for `def`, with defaults by name: `dim=_default_dim`."""
    parts, star = [], False
    for p in given:
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        lead = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        parts.append(lead + p.name + ("" if p.default is p.empty else f"=_default_{p.name}"))
    return ", ".join(parts)


def namespace(given: list[inspect.Parameter]) -> dict[str, Any]:
    """The global names that the source of `parameter_list` and `prologue` uses, with their values."""
    defaults = {f"_default_{p.name}": p.default for p in given if p.default is not p.empty}
    found = {
        **defaults,
        "_refuse": _refuse,
        "_reduction": reduction_of,
        "_raise_missing": _raise_missing,
        "_missing": MISSING,
    }
    return {**found, "_change": change, "_into": into, "_switch": switch}


def accept_compat_args(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` so that it accepts PyTorch's further arguments; ops do already (`Signature.entry`).

    The wrapper is compiled at its first call: an import makes hundreds, of which a script calls few.
    """
    signature = inspect.signature(function)
    given, name = with_compat_args(signature.parameters), function.__name__
    space: dict[str, Any] = {"_function": function, "_compiled": lambda: _compile(made, signature.parameters, given)}
    made: types.FunctionType = types.FunctionType(_first_call.__code__, space, name)
    made.__qualname__ = name
    made.__module__ = ".".join(function.__module__.split(".")[:2])  # the public package that exports it
    made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # mypy knows no attributes of functions
        given, return_annotation=signature.return_annotation
    )
    return made


def _first_call(*args: Any, **kwargs: Any) -> Any:
    return _compiled()(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821  # in the wrapper's namespace


def _compile(made: types.FunctionType, parameters: Parameters, given: list[inspect.Parameter]) -> Callable[..., Any]:
    # Give `made` its code, under the references to it that there are.
    name, space = made.__name__, made.__globals__
    names, row, by_name = {p.name for p in given}, [], False
    for p in parameters.values():
        by_name = by_name or p.kind is p.KEYWORD_ONLY or not is_passed_on(p)
        if p.kind is p.VAR_POSITIONAL:
            row.append(f"*_{p.name}" if f"_{p.name}" in names else f"*{p.name}")
        elif p.kind is p.VAR_KEYWORD:
            row.append(f"**{p.name}")
        elif is_passed_on(p):
            row.append(f"{p.name}={p.name}" if by_name else p.name)
    lines = [*prologue(name, given, "_function"), *_taken_over(parameters), f"    return _function({', '.join(row)})"]
    body = "\n".join(lines)
    space |= namespace(given) | {"_in_force": overrides.in_force, "_plain": overrides.PLAIN}
    space |= {"_numbers": overrides.NUMBERS, "_of_first": overrides.of_first}
    space["_call"] = lambda args, kwargs: overrides.call(made, args, kwargs)
    own: dict[str, Any] = {}
    exec(f"def {name}({parameter_list(given)}):\n{body}", space, own)
    # The code last: until then a call from another thread compiles, too, to the same effect.
    made.__defaults__, made.__kwdefaults__ = own[name].__defaults__, own[name].__kwdefaults__
    made.__code__ = own[name].__code__
    return made


def _taken_over(parameters: Parameters) -> Iterator[str]:
    # The source lines that hand a call over to the class of its first argument, or to a mode.
    lead = next((p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD and is_passed_on(p)), None)
    if lead is not None and lead.name == "obj":  # asks of any object what it is: `is_tensor`
        return
    if lead is None or next(iter(parameters.values())) is not lead:
        asked, test = "None", "_in_force"
    else:
        asked = lead.name
        test = f"(type({asked}) not in _plain and type({asked}) not in _numbers) or _in_force"
    words, args, kwargs = "", "", ""
    for p in parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            args += f"*_{p.name}, " if p.name in _SHAPES else f"*{p.name}, "
        elif p.kind is p.VAR_KEYWORD:
            kwargs += f", **{p.name}"
        elif is_passed_on(p) and p.default is p.empty and p.kind is not p.KEYWORD_ONLY:
            args += f"{p.name}, "
        elif is_passed_on(p):
            words += (
                f"({p.name!r}, {p.name}, _default_{p.name}), "
                if p.default is not p.empty
                else f"({p.name!r}, {p.name}, ...), "
            )
    given = f"{{**{{k: v for k, v, d in [{words}] if v is not d}}{kwargs}}}"
    yield f"    if ({test}) and _of_first({asked}): return _call(({args}), {given})"


def _refuse(name: str, word: str, value: Any) -> None:
    got = repr(value) if isinstance(value, (bool, int, float, str)) else f"a {type(value).__name__}"
    raise ArgumentError(name, f"{word} left at its default, the only one there is", got, REFUSED[word])


def reduction_of(size_average: Any, reduce: Any) -> str:
    """The `reduction` that PyTorch's deprecated `size_average` and `reduce` stand for; None means True.

    reduce=False is "none", size_average=False is "sum", else "mean". Raises ArgumentError for other types.
    """
    for name, value in (("size_average", size_average), ("reduce", reduce)):
        if not isinstance(value, (bool, int, type(None))):
            raise ArgumentError("loss", f"{name} True, False or None", f"a {type(value).__name__}")
    if reduce is not None and not reduce:
        return "none"
    return "mean" if size_average is None or size_average else "sum"


def _raise_missing(name: str, **given: Any) -> None:
    missing = ", ".join(repr(argument) for argument, value in given.items() if value is MISSING)
    raise TypeError(f"{name}() missing the argument {missing}")
