"""What tools that run a model need: a model and a loss that are ones, and to leave the model as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ... import backends
from ...base.dtypes import FLOATS
from ...base.errors import ArgumentError, ShapeError
from ...core import random
from ...core.tensor import Tensor
from ...nn import Module


def need_module(where: str, model: Any) -> None:
    """Raise ArgumentError for a model that is no module."""
    if not isinstance(model, Module):
        raise ArgumentError(where, "a module as `model`", f"a {type(model).__name__}")


def need_loss(where: str, loss: Any) -> Tensor:
    """Return `loss`. Raises ShapeError for what a backward cannot begin with."""
    if isinstance(loss, Tensor) and loss.array.size == 1 and loss.array.dtype in FLOATS:
        return loss
    got = f"{loss.dtype.name} {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    raise ShapeError(where, "a loss of one floating-point number, a Tensor []", got)


@contextmanager
def unchanged(model: Module) -> Iterator[None]:
    """Restores the buffers of `model`, running statistics among them, and the default random stream at the end."""
    state, kept = random.get_rng_state(), copies(model.buffers())
    try:
        yield
    finally:
        random.set_rng_state(state)
        put_back(kept)


Copies = list[tuple[Any, Any, Any]]  # of each tensor: itself, its array, and a copy of the values


def copies(tensors: Iterable[Any]) -> Copies:
    """What `put_back` takes to give `tensors` the values that they have now."""
    kept = []
    for tensor in tensors:
        with backends.device_guard(tensor.array):
            kept.append((tensor, tensor.array, tensor.array.copy()))
    return kept


def put_back(kept: Copies) -> None:
    """Give tensors the values that they had, in their memory of then."""
    for tensor, array, values in kept:
        with backends.device_guard(array):
            array[...] = values
        tensor.array = array
        tensor.changed()
