"""What code names, and whose it is: the names of attributes and globals that functions read or set."""

from __future__ import annotations

import sys
from dis import get_instructions
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

CONSTRUCTORS = {"__init__", "__new__", "__post_init__"}  # what they set belongs to an object that the call makes
# Methods that code calls without naming them.
IMPLICIT = {
    "__call__", "__getattr__", "__getattribute__", "__getitem__", "__setitem__", "__len__", "__iter__", "__next__",
    "__contains__", "__bool__", "__enter__", "__exit__", "__float__", "__int__", "__index__", "__eq__", "__lt__",
    "__le__", "__gt__", "__ge__", "__neg__", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__",
    "__truediv__", "__rtruediv__", "__pow__", "__rpow__", "__matmul__",
}  # fmt: skip
LIBRARIES = {*sys.stdlib_module_names, "ampkit", "numpy", "cupy", "ml_dtypes", "pydantic", "pydantic_core", "rich"}


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names of attributes and of globals that `code`, and functions within it, read or set."""
    attributes: set[str] = set()
    names: set[str] = set()
    for step in get_instructions(code):
        if step.opname.endswith("_ATTR") or step.opname in ("LOAD_METHOD", "IMPORT_FROM"):
            attributes.add(step.argval)
        elif step.opname.endswith(("_GLOBAL", "_GLOBALS", "_NAME")):
            names.add(step.argval)
    if not names.isdisjoint(("getattr", "hasattr", "setattr")):
        attributes.update(text for text in code.co_consts if isinstance(text, str) and text.isidentifier())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            within = names_in(constant)
            attributes |= within[0]
            names |= within[1]
    return frozenset(attributes - CONSTRUCTORS), frozenset(names)


def function_of(member: Any) -> FunctionType | None:
    """The function of a method, a property, or a static or class method; None of anything else."""
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return member if isinstance(member, FunctionType) else None


def is_library(value: Any) -> bool:
    """Whether a class, function or module belongs to this library, its dependencies or the standard library."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] in LIBRARIES
