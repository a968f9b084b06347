"""Arrays beside plain ones: those that hold an array of a device or stand for one, and NumPy's masked arrays."""

from __future__ import annotations

from collections.abc import Callable
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


class Absent(OwnBackend):
    """What a tensor holds whose values are elsewhere: their shape and dtype. Ops read what its `copy_in` returns.

    data: an array like them. bring: gives the tensor the values.
    """

    def __init__(self, data: Any, backend: Any, bring: Callable[[], None]):
        self.data, self._backend, self.bring = data, backend, bring
        self.dtype, self.shape, self.ndim, self.size = data.dtype, data.shape, data.ndim, data.size
        self.itemsize, self.nbytes, self.strides, self.flags = data.itemsize, data.nbytes, data.strides, data.flags

    @property
    def backend(self) -> Any:
        return self._backend

    @property
    def device(self) -> Any:
        """As a GPU's arrays have it."""
        return self.data.device


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
