"""`torch._utils`: several tensors as one flat tensor, and back; errors that go to another thread or process."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from .... import ops
from ....core.tensor import Tensor

__all__ = ["ExceptionWrapper", "_flatten_dense_tensors", "_unflatten_dense_tensors"]


class ExceptionWrapper:
    """An error that can be pickled: its class and its text with the traceback.

    exc_info: what sys.exc_info() gives, by default that of the error being handled. where: that `reraise` names.
    """

    def __init__(self, exc_info: Any = None, where: str = "in background"):
        kind, error, trace = exc_info or sys.exc_info()
        self.exc_type: Any = kind
        self.exc_msg, self.where = "".join(traceback.format_exception(kind, error, trace)), where

    def reraise(self) -> NoReturn:
        """Raise an error of the class; a RuntimeError where a text alone does not make one."""
        text = f"{self.exc_type.__name__} {self.where}\n{self.exc_msg}"
        try:
            error = self.exc_type(text)
        except Exception:
            error = RuntimeError(text)
        raise error


def _flatten_dense_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """All elements in a tensor of one axis, which holds a copy of them."""
    return ops.cat([tensor.reshape(-1) for tensor in tensors])


def _unflatten_dense_tensors(flat: Tensor, tensors: Iterable[Tensor]) -> Sequence[Any]:
    """Views of a flat tensor with the shapes of `tensors`, one behind the other."""
    found, place = [], 0
    for tensor in tensors:
        found.append(flat[place : place + tensor.numel()].reshape(tensor.shape))
        place += tensor.numel()
    return tuple(found)
