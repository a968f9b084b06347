"""Type stubs for what is bound at run time: `python -m tests.api.stubs` writes them, tests/api/test_stubs.py compares.

An op is an object made by `@op`, and Tensor's methods are bound from a table, so that neither has a signature that a
type checker or an editor can read. The stubs are written from the run-time signatures, those that
tests/golden/signatures.txt is compared with.

ampkit/ops/__init__.pyi          the functions of `ampkit.ops`
ampkit/core/tensor_methods.pyi   the methods and operators that `ampkit.ops` gives Tensor
ampkit/__init__.pyi              the names of the package, each exported
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ampkit
from ampkit import Tensor, ops
from ampkit.core.op import Op

PACKAGE = Path(ampkit.__file__).parent
HEADER = "# Written by `python -m tests.api.stubs`: change the signatures, not this file.\n"

# What `@op` and the parameters of torch_compat are called in references, and what a caller passes there.
TYPES = {"Bound": "float", "Array": "Tensor", "Index": "Tensor", "Arrays": "Sequence[Tensor]"}
COMPATIBILITY = {
    "out": "Tensor | None", "inplace": "bool", "keepdims": "bool | None", "pin_memory": "bool",
    "requires_grad": "bool", "size_average": "bool | None", "reduce": "bool | None",
}  # fmt: skip
RETURNS = {"__contains__": "bool", "__setitem__": "None", "split_with_sizes": "tuple[Tensor, ...]", "type": "Any"}
IMPORTS = """import builtins
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ampkit.core.tensor import Tensor
"""
OPERAND = "Operand = Tensor | float | np.generic | np.ndarray[Any, Any]"


def written() -> dict[Path, str]:
    """Every stub: its path and its text."""
    return {
        PACKAGE / "ops/__init__.pyi": _functions(),
        PACKAGE / "core/tensor_methods.pyi": _methods(),
        PACKAGE / "__init__.pyi": _exports(ampkit),
    }


def _functions() -> str:
    imports: set[str] = set()
    functions = [name for name in sorted(ops.__all__) if not inspect.isclass(getattr(ops, name))]
    lines = [_definition(name, getattr(ops, name), imports) for name in functions]
    return _stub(imports, [f"__all__ = {sorted(ops.__all__)!r}\n", *lines])


def _methods() -> str:
    imports: set[str] = set()
    lines = [
        OPERAND,
        "",
        "class TensorMethods:",
        '    """The methods of Tensor that are functions of `ampkit.ops`."""\n',
    ]
    for name in sorted(_bound()):
        member = inspect.getattr_static(Tensor, name)
        if isinstance(member, property):
            result = _annotation(member.fget, "return", imports) or "Tensor"
            lines += ["    @property", f"    def {name}(self) -> {_builtin(result)}: ..."]
        else:
            lines.append(textwrap.indent(_method(name, member, imports), "    "))
    return _stub(imports, lines)


def _bound() -> Iterator[str]:
    """The names that `ops` sets on Tensor: those in its namespace that its source does not define."""
    source = ast.parse((PACKAGE / "core/tensor.py").read_text())
    body = next(node.body for node in source.body if isinstance(node, ast.ClassDef) and node.name == "Tensor")
    own = {node.name for node in body if isinstance(node, ast.FunctionDef)} | {"__getattr__"}  # kept from checkers
    own |= {
        target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if hasattr(target, "id")
    }
    own |= {*Tensor.__slots__, "__module__", "__doc__", "__slots__", "__hash__", "__qualname__", "__annotations__"}
    return (name for name in vars(Tensor) if name not in own)


def _method(name: str, member: Callable[..., Any], imports: set[str]) -> str:
    signature = inspect.signature(member)
    if any(p.kind is p.VAR_POSITIONAL and p.name == "args" for p in signature.parameters.values()):
        function = getattr(ops, name, None) or getattr(ops, name.rstrip("_"), None)
        if function is not None:
            return _definition(name, function, imports, of_self=True)
    if list(signature.parameters)[1:] in (["other"], ["args", "kwargs"]) and name.startswith("__"):
        ignore = "  # type: ignore[override]  # a Tensor of bools" if name in ("__eq__", "__ne__") else ""
        return f"def {name}(self, other: {'object' if ignore else 'Operand'}) -> Tensor: ...{ignore}"
    return _definition(name, member, imports, of_self=True)


def _definition(name: str, function: Any, imports: set[str], of_self: bool = False) -> str:
    parameters = list(inspect.signature(function).parameters.values())
    parts, marked = (["self"], False) if of_self else ([], False)
    for p in parameters[1:] if of_self else parameters:
        if p.name == "out" and of_self and name.endswith("_"):
            continue
        if p.kind is p.KEYWORD_ONLY and not marked:
            parts.append("*")
        marked = marked or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        parts.append(_parameter(p, function, imports))
    result = RETURNS.get(name) or _result(name, function, imports)
    if of_self:
        parts, result = [_builtin(part) for part in parts], _builtin(result)
    return f"def {name}({', '.join(parts)}) -> {result}: ..."


def _parameter(p: inspect.Parameter, function: Any, imports: set[str]) -> str:
    star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    kind = _annotation(function, p.name, imports) or COMPATIBILITY.get(p.name) or _by_default(p.default)
    if _scalars(function) and kind in ("Tensor", "Tensor | None") and p.name not in ("input", "self", "out"):
        kind = kind.replace("Tensor", "Tensor | float")
    return f"{star}{p.name}: {kind}" + ("" if p.default is p.empty else " = ...")


def _scalars(function: Any) -> bool:
    """Whether a Python number may stand for any operand but the first: so it is in pointwise ops."""
    return _origin(function).__module__.startswith("ampkit.ops.pointwise")


def _by_default(default: Any) -> str:
    if isinstance(default, bool):
        return "bool"
    if isinstance(default, int):
        return "float | Sequence[int]"
    return "float" if isinstance(default, float) else "str" if isinstance(default, str) else "Any"


def _result(name: str, function: Any, imports: set[str]) -> str:
    if isinstance(function, Op):
        return "tuple[Tensor, ...]" if _returns_several(function) else "Tensor"
    return _annotation(function, "return", imports) or ("Any" if name.startswith("__array") else "Tensor")


def _returns_several(op: Op) -> bool:
    """Whether the reference returns a tuple of arrays and what it saves, by its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(_origin(op))))
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return any(isinstance(v, ast.Tuple) and isinstance(v.elts[0], ast.Tuple) for v in values)


def _origin(function: Any) -> Any:
    """The function as it is written in its module, under the wrappers that check and translate arguments."""
    if isinstance(function, Op):
        return function.forward.reference.run
    while True:
        inner = getattr(function, "__wrapped__", None) or getattr(function, "__globals__", {}).get("_function")
        if inner is None:
            return function
        function = inner


def _annotation(function: Any, name: str, imports: set[str]) -> str | None:
    """The type of a parameter, or of the result, as the stub spells it; None where the source gives none."""
    origin = _origin(function)
    text = getattr(origin, "__annotations__", {}).get(name)
    if text is None or text == "CompatArg":
        return None
    text = text if isinstance(text, str) else inspect.formatannotation(text)
    for old, new in TYPES.items():
        text = re.sub(rf"\b{old}\b", new, text)
    for word in set(re.findall(r"(?<![\w.'\"])[A-Za-z_]\w*", text)) - {
        "Tensor",
        "Any",
        "Sequence",
        "Iterable",
    }:
        if not hasattr(builtins, word):
            imports.add(_import(word, origin))
    return text


def _import(word: str, function: Any) -> str:
    found = function.__globals__.get(word)
    if isinstance(found, ModuleType):
        return f"import {found.__name__} as {word}" if found.__name__ != word else f"import {word}"
    module = found.__module__ if isinstance(found, type) else function.__module__
    return f"from {module} import {word}"


def _builtin(text: str) -> str:
    """`text` where names such as `float` are methods of the class: they come from `builtins`."""
    return re.sub(r"(?<![\w.])(float|int|bool)\b(?!\()", r"builtins.\1", text)


def _exports(package: ModuleType) -> str:
    """A package's imports as they are in its source, its functions as imports of what they stand for, and `__all__`.

    The latter as a literal, which type checkers need.
    """
    source = ast.parse(Path(str(package.__file__)).read_text())
    lines = []
    for node in source.body:
        if isinstance(node, ast.ImportFrom | ast.Import) and not any(
            (a.asname or a.name).startswith("_") for a in node.names
        ):
            for alias in node.names:  # what `__all__` leaves out is a name of the package none the less
                hides = isinstance(node, ast.ImportFrom) and hasattr(builtins, alias.name)
                alias.asname = alias.asname or (alias.name if hides else None)
            lines.append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            # which imports what it stands for when it is called
            module = next(each for each in node.body if isinstance(each, ast.ImportFrom))
            lines.append(f"from .{module.module}.{module.names[0].name} import {node.name}")
    for name, place in package._LATER.items():
        module, _, last = place.rpartition(".")
        lines.append(f"from {module or '.'} import {name}" if last == name else f"from {place} import {name}")
    return (
        HEADER
        + "\n".join([*lines, "newaxis: None", "__version__: str", f"__all__ = {sorted(package.__all__)!r}"])
        + "\n"
    )


def _stub(imports: set[str], lines: list[str]) -> str:
    return HEADER + IMPORTS + "\n".join([*sorted(imports), "", *lines]) + "\n"


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
