"""Tensors in memory that processes share: a change that one of them makes in place, all of them see.

The memory is Python's (`multiprocessing.RawArray`): a process that multiprocessing starts with such a tensor among its
arguments maps it, and it is freed with the last one. Nothing is locked, as in Hogwild! (Niu et al. 2011,
arXiv:1106.5730): of two writes to an element at once, one is lost.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import backends
from ..base.dtypes import Array, DType
from ..base.errors import DeviceError, StateError
from .tensor import Tensor

_ALIGNMENT = 256  # bytes, as of arenas


def is_shared(self: Tensor) -> bool:
    """Whether the values are in memory that processes share."""
    return block_of(self.array) is not None


def share_memory_(self: Tensor) -> Tensor:
    """Move the values into memory that processes share; a process gets the tensor itself as an argument. -> self.

    An optimizer updates it there, in float32 or float64, and is to be made in each process, after this. Casts of it are
    not cached, since another process may have changed it. Raises DeviceError for a tensor that is not on the CPU,
    StateError for the result of a recorded operation.
    """
    if backends.backend_of(self.array) is not backends.cpu:
        cure = "use ampkit.distributed for processes with GPUs (docs/distributed.md)"
        raise DeviceError("share_memory_", "a tensor on the CPU", f"one on {self.device}", cure)
    if self._tape_node is not None:
        raise StateError("share_memory_", "a leaf", "the result of a recorded operation", "use .detach()")
    if block_of(self.array) is None:
        import multiprocessing

        block = multiprocessing.RawArray("b", self.array.nbytes + _ALIGNMENT)
        values = _mapped(block, 0, self.array.shape, self.array.dtype)
        values[...] = self.array
        self.rebind(values)
    self.exposed()
    return self


def block_of(array: Array) -> Any:
    """The RawArray that holds the memory of an array, or None."""
    while array is not None and not hasattr(array, "_wrapper"):
        array = getattr(array, "base", None)
    return array


def pickled(tensor: Tensor) -> tuple[Any, ...] | None:
    """What pickles a shared tensor for a process that is being started, which then maps the memory; else None."""
    from multiprocessing.context import get_spawning_popen

    if get_spawning_popen() is None or (block := block_of(tensor.array)) is None or not tensor.array.flags.c_contiguous:
        return None
    offset = tensor.array.ctypes.data - np.frombuffer(block, np.uint8).ctypes.data
    return _restored, (type(tensor), block, offset, tensor.array.shape, tensor.array.dtype.name, tensor.requires_grad)


def _restored(
    kind: type[Tensor], block: Any, offset: int, shape: tuple[int, ...], dtype: str, requires_grad: bool
) -> Tensor:
    from ..base import dtypes

    tensor = kind(_mapped(block, offset, shape, dtypes.parse(dtype)), requires_grad=requires_grad)
    tensor.exposed()
    return tensor


def _mapped(block: Any, offset: int, shape: tuple[int, ...], dtype: DType) -> Array:
    raw = np.frombuffer(block, np.uint8)
    start = offset or -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


for _method in (is_shared, share_memory_):
    setattr(Tensor, _method.__name__, _method)
