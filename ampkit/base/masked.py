"""NumPy's masked arrays: some of their elements have no value."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import ArgumentError


def need_unmasked(array: Any, where: str) -> None:
    """Raise ArgumentError for a np.ma.MaskedArray that hides elements: a tensor would show what is below the mask."""
    if type(array) is np.ndarray or not isinstance(array, np.ndarray):  # so that few import np.ma
        return
    if isinstance(array, np.ma.MaskedArray) and (count := np.count_nonzero(array.mask)):
        cure = "array.filled(value) gives them a value, array.compressed() leaves them out"
        raise ArgumentError(where, "an array without masked elements", f"{count} of {array.size} masked", cure)
