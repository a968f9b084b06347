"""Recorders: what is told, while it is in `recorders`, of the tensors, modules and other objects that a step uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Recorder:
    """The notifications, which do nothing here."""

    def changed(self, tensor: Any) -> None:
        """A tensor's values changed in place."""

    def exposed(self, tensor: Any) -> None:
        """Code that knows of no recorders may write to a tensor's memory from now on."""

    def written(self, tensor: Any, values: Any) -> None:
        """A whole tensor is about to get `values`, an array or a number, in place; `changed` follows."""

    def moved(self, tensor: Any, before: Any) -> None:
        """A tensor has its values in another array now, no longer in the array `before`."""

    def converted(self, tensor: Any, made: Any) -> None:
        """`made` has the values of a tensor in another dtype, by no op: one of the two is not floating-point."""

    def read_on_host(self, tensor: Any) -> None:
        """A tensor's values are read as Python numbers or as a NumPy array."""

    def read(self, tensor: Any, dtype: Any, copy: Any) -> None:
        """A cached cast of a tensor to `dtype` was read."""

    def made(self, tensor: Any) -> None:
        """A cast of a tensor was made and cached."""

    def uses(self, owner: object) -> None:
        """An object's memory is used, such as an optimizer's."""

    def met(self, tensors: Iterable[Any]) -> None:
        """An op has read tensors."""

    def reads(self, read: Any, key: Any) -> None:
        """`read(key)` was read on the host."""

    def ran(self, module: Any) -> None:
        """A module is called."""

    def asks_gradient(self, leaf: Any) -> None:
        """What a step does next depends on whether `leaf` has a gradient."""

    def writes_gradient(self, leaf: Any) -> None:
        """The gradient of `leaf` is made or dropped."""


recorders: list[Recorder] = []  # of steps that are captured, or about to be (see compiled.py)


def uses(owner: object) -> None:
    """Tell recorders of an object whose device memory the step uses, so that a recording keeps it alive."""
    for recorder in recorders:
        recorder.uses(owner)


def asks_gradients(leaves: Iterable[Any]) -> None:
    """Tell recorders that what a step does next depends on which of `leaves` have a gradient."""
    for recorder in recorders:
        for leaf in leaves:
            recorder.asks_gradient(leaf)
