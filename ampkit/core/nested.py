"""Traverse and rebuild nested lists, tuples, named tuples and dicts of tensors, such as arguments and results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from .tensor import Tensor


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in `values`, depth first, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for item in values:
            yield from tensors_in(item)
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))


def with_tensors(values: Any, tensors: Iterator[Any]) -> Any:
    """A copy of the structure `values` in which the next item of `tensors` replaces each tensor, in order."""
    if isinstance(values, Tensor):
        return next(tensors)
    if isinstance(values, dict):
        named = {key: with_tensors(item, tensors) for key, item in values.items()}
        return OrderedDict(named) if type(values) is OrderedDict else named
    if isinstance(values, (list, tuple)):
        items = [with_tensors(item, tensors) for item in values]
        return type(values)(*items) if hasattr(values, "_fields") else type(values)(items)
    return values


def leaves(values: Any) -> list[Any]:
    """What stands in `values` that is no list, tuple or dict, depth first, in order."""
    if isinstance(values, dict):
        values = list(values.values())
    return [leaf for item in values for leaf in leaves(item)] if isinstance(values, (list, tuple)) else [values]
