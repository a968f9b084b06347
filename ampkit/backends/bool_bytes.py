"""Bools whose bytes are neither 0 nor 1: true for NumPy, but kernels that add up bytes count them as their number."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtypes import Array, bool_
from ..base.errors import ArgumentError
from . import backend_of


def need_bool_bytes(where: str, array: Array) -> None:
    """Raise ArgumentError for bools in memory of others with bytes above 1. On a GPU the error comes from a later call.

    It is for memory that a tensor shares; where it is copied, `as_bools` makes them 0 and 1.
    """
    if array.dtype != bool_ or not array.size:
        return
    raw = array.view(np.uint8)
    if isinstance(raw, np.ndarray) and raw.max() <= 1:  # making a mask takes longer
        return

    def fail(value: Any, position: Any) -> None:
        cure = "compare the bytes with 0: array.view(numpy.uint8) != 0, or x != 0"
        raise ArgumentError(where, "bools whose bytes are 0 or 1", f"a byte of {value} at position {position}", cure)

    backend_of(raw).raise_if(raw, raw > 1, fail)


def as_bools(raw: np.ndarray[Any, Any]) -> None:
    """Make bytes, of which all but 0 are true, 0 and 1 in place."""
    np.not_equal(raw, 0, out=raw.view(bool_))
