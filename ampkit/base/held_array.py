"""Arrays that hold an array of a device, and say themselves what their backend is."""

from __future__ import annotations

from typing import Any


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
