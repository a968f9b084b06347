"""`tensor`: from values to a Tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ArgumentError, DTypeError, ShapeError
from .fp_errors import ignore_fp_errors
from .tensor import Tensor


@ignore_fp_errors()
def tensor(data: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """A new tensor with a copy of `data`: numbers, nested lists, an array, a Tensor.

    Python floats become float32, integers int64; arrays keep their dtype unless `dtype` is given.
    Raises DTypeError for values that are no numbers, ShapeError for ragged lists, DeviceError for an unknown device.
    """
    values = data.array if isinstance(data, Tensor) else data
    wanted = None if dtype is None else dtypes.parse(dtype)
    made = backends.get(device).asarray(_array(values, wanted))
    return Tensor(made, requires_grad)


def _array(values: Any, wanted: DType | None) -> Array:
    if hasattr(values, "dtype") and hasattr(values, "shape"):
        kind = dtypes.parse(values.dtype)
        return np.array(values, kind if wanted is None else wanted)
    try:
        made = np.array(_plain(values))
    except ValueError as error:
        raise ShapeError("tensor", "nested lists of equal lengths", str(error).partition(".")[0]) from None
    except OverflowError as error:
        raise ArgumentError("tensor", "numbers in range", str(error)) from None
    if made.dtype.kind not in "bif" and made.size:
        raise DTypeError("tensor", "numbers", f"values of type {made.dtype}")
    return made.astype(wanted or (made.dtype if made.dtype.kind in "bi" else dtypes.float32))


def _plain(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.tolist()
    return [_plain(v) for v in values] if isinstance(values, (list, tuple)) else values
