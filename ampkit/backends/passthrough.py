"""Kernels that are an op's own reference, on arrays as they are stored.

For an op whose reference is made of primitives that read 16-bit arrays: it then runs without float32 copies of what it
is given, and its products in the format of its operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.dtypes import LOW, DType


def runs_as_stored(op: Any, backend: str, worth: Callable[..., bool]) -> None:
    """Give `op`, forward and backward, such kernels on `backend`, for tensors of one 16-bit format.

    worth: called with the tensors of a forward, or of what it saved; says whether it pays.
    """
    forward, backward = op.forward.reference.run, op.backward_primitive.reference.run
    count, names = len(op.signature.names), op.signature.names

    def fits(*args: Any) -> bool:
        return _alike(args[:count]) and worth(*args[:count])

    def as_stored(*args: Any, dtype: DType) -> Any:
        return forward(*args) if dtype == args[0].dtype else NotImplemented

    def back_fits(dy: Any, saved: Any, needs: Any, **params: Any) -> bool:
        arrays = [getattr(saved, name) for name in names]
        return dy[0].dtype == saved.out.dtype and _alike(arrays) and worth(*arrays)

    def as_stored_backward(dy: Any, saved: Any, needs: Any, **params: Any) -> Any:
        return backward(dy, saved, needs, **params)

    as_stored.__name__ = as_stored_backward.__name__ = f"{op.name}_{backend}"
    op.on(backend, when=fits)(as_stored)
    op.on_backward(backend, when=back_fits)(as_stored_backward)


def _alike(arrays: Any) -> bool:
    dtype = arrays[0].dtype
    return dtype in LOW and all(array is None or array.dtype == dtype for array in arrays)
