"""The options of optimizers: numbers in their ranges, and what is True or False; looked over before all else."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

from ..base.errors import ArgumentError, unquoted

# PyTorch's words for which of its implementations runs: taken, and nothing changes
WORDS = ("foreach", "fused", "capturable")
# of a saved group: what stays as it is here when a state is loaded
NOT_OURS = frozenset({"params", *WORDS, "differentiable", "stochastic_rounding"})


def plain(value: Any) -> Any:
    """A hyperparameter as Python numbers, if it came as a Tensor or an array of one element."""
    if isinstance(value, (list, tuple)):
        return tuple(plain(v) for v in value)
    if type(value) is int and not -_MOST <= value <= _MOST:  # beyond, arrays of int64 cannot take part
        return float(value) if abs(value) <= sys.float_info.max else value
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


_MOST = 2**63 - 1


def is_number(value: Any) -> bool:
    """Whether `value` is a number that a float holds; True and False are none."""
    return type(value) is not bool and isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def need(where: str, options: dict[str, Any], key: str, low: float = 0.0, high: float = math.inf) -> None:
    """Raise ArgumentError unless `options[key]`, if it is there, is a finite number in [low, high]."""
    if key not in options:
        return
    value = options[key]
    if not is_number(value) or not low <= value <= high:
        finite = "a finite " if isinstance(value, float) and math.isinf(value) else ""
        raise ArgumentError(where, finite + _range(key, low, high), repr(value))


def _range(key: str, low: float, high: float) -> str:
    if low == -math.inf:
        return f"{key} as a number" if high == math.inf else f"{key} <= {high:g}"
    return f"{key} >= {low:g}" if high == math.inf else f"{key} in [{low:g}, {high:g}]"


def need_whole(where: str, options: dict[str, Any], key: str, low: int) -> None:
    """Raise ArgumentError unless `options[key]`, if it is there, is an integer of 32 bits from `low` on."""
    value = options.get(key, low)
    if type(value) is not int or not low <= value < 2**31:
        raise ArgumentError(where, f"{key} as an integer from {low} to {2**31 - 1}", repr(value))


def need_betas(where: str, options: dict[str, Any]) -> None:
    """Raise ArgumentError unless `options["betas"]`, if it is there, is a pair of numbers in [0, 1)."""
    betas = options.get("betas", (0, 0))
    if not is_pair(betas) or not all(0 <= beta < 1 for beta in betas):
        raise ArgumentError(where, "two betas in [0, 1)", repr(betas))


def is_pair(value: Any) -> bool:
    """Whether `value` is two numbers."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(is_number(each) for each in value)


def need_flags(where: str, options: dict[str, Any], keys: Iterable[str]) -> None:
    """Raise ArgumentError unless those of `keys` that are there are True or False: "false", say, would be true."""
    for key in keys:
        value = options.get(key, False)
        if type(value) is not bool:
            raise ArgumentError(where, f"{key} True or False", repr(value), unquoted(key, value))


def need_words(where: str, differentiable: Any = False, **words: Any) -> None:
    """Raise ArgumentError unless PyTorch's choices of implementation are True, False or None.

    And for a step that gradients would flow through.
    """
    for key, value in words.items():
        if value is not None and type(plain(value)) is not bool:
            raise ArgumentError(where, f"{key} True, False or None", repr(value), unquoted(key, value))
    need_flags(where, {"differentiable": plain(differentiable)}, ["differentiable"])
    if differentiable:
        raise ArgumentError(where, "differentiable=False", repr(differentiable), "write the update with ops")
