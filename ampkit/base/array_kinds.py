"""Arrays beside plain ones: those that hold an array of a device, and NumPy's masked arrays, which hide elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import ArgumentError


class OwnBackend:
    """The base class of such arrays. data: what they hold, which may be another one."""

    __slots__ = ()
    data: Any

    @property
    def backend(self) -> Any:
        """Their Backend."""
        raise NotImplementedError


def on_device(array: Any) -> Any:
    """The array of a device that `array` holds, or is."""
    while isinstance(array, OwnBackend):
        array = array.data
    return array


def need_unmasked(array: Any, where: str) -> None:
    """Raise ArgumentError for a np.ma.MaskedArray that hides elements: a tensor would show what is below the mask."""
    if type(array) is np.ndarray or not isinstance(array, np.ndarray):  # so that few import np.ma
        return
    if isinstance(array, np.ma.MaskedArray) and (count := np.count_nonzero(array.mask)):
        cure = "array.filled(value) gives them a value, array.compressed() leaves them out"
        raise ArgumentError(where, "an array without masked elements", f"{count} of {array.size} masked", cure)
