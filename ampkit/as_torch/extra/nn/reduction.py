"""`torch.nn._reduction`, which losses of others import: the numbers that PyTorch's kernels have for `reduction`."""

from __future__ import annotations

from typing import Any

from ....base.errors import ArgumentError

__all__ = ["get_enum"]

_NUMBERS = {"none": 0, "mean": 1, "sum": 2}


def get_enum(reduction: str) -> int:
    """0 for "none", 1 for "mean", 2 for "sum". Raises ArgumentError for anything else."""
    if not isinstance(reduction, str) or reduction not in _NUMBERS:
        raise ArgumentError("get_enum", f"one of {', '.join(_NUMBERS)}", repr(reduction))
    return _NUMBERS[reduction]


def name_of(reduction: Any) -> Any:
    """The name of a number that `get_enum` gives; what is no such number as it is."""
    names = {number: name for name, number in _NUMBERS.items()}
    return names.get(reduction, reduction) if type(reduction) is int else reduction
