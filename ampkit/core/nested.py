"""Tensors in what functions take and return: lists, tuples, named tuples and dicts of them and of other things."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .tensor import Tensor


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors in `values`, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for item in values:
            yield from tensors_in(item)
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))


def with_tensors(values: Any, tensors: Iterator[Any]) -> Any:
    """`values` with `tensors` in the places of its own."""
    if isinstance(values, Tensor):
        return next(tensors)
    if isinstance(values, dict):
        return {key: with_tensors(item, tensors) for key, item in values.items()}
    if isinstance(values, (list, tuple)):
        items = [with_tensors(item, tensors) for item in values]
        return type(values)(*items) if hasattr(values, "_fields") else type(values)(items)
    return values
