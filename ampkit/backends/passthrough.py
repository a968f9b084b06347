"""Kernels that run an op's own reference on 16-bit arrays, without casting them to float32 first.

For an op whose reference is built from primitives that read 16-bit arrays: it then makes no float32 copies of its
inputs, and its matrix products run in the dtype of their operands.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import eq
from typing import Any

from ..base.dtypes import LOW, DType


def runs_as_stored(op: Any, backend: str, worth: Callable[..., bool]) -> None:
    """Register such kernels, forward and backward, for `op` on `backend`, for inputs of the same 16-bit dtype.

    worth: a predicate, called with the input arrays (in the backward, with the saved ones); False where the kernel
    would be slower than the reference on float32.
    """
    forward, backward = op.forward.reference.run, op.backward_primitive.reference.run
    count, names = len(op.signature.names), op.signature.names

    def supports(*args: Any) -> bool:
        return _same_low_dtype(args[:count]) and worth(*args[:count])

    def as_stored(*args: Any, dtype: DType) -> Any:
        return forward(*args)

    def supports_backward(dy: Any, saved: Any, needs: Any, **params: Any) -> bool:
        arrays = [getattr(saved, name) for name in names]
        return dy[0].dtype == saved.out.dtype and _same_low_dtype(arrays) and worth(*arrays)

    def as_stored_backward(dy: Any, saved: Any, needs: Any, **params: Any) -> Any:
        return backward(dy, saved, needs, **params)

    as_stored.__name__ = as_stored_backward.__name__ = f"{op.name}_{backend}"
    op.on(backend, when=supports, dtypes=eq)(as_stored)
    op.on_backward(backend, when=supports_backward)(as_stored_backward)


def _same_low_dtype(arrays: Any) -> bool:
    dtype = arrays[0].dtype
    return dtype in LOW and all(array is None or array.dtype == dtype for array in arrays)
