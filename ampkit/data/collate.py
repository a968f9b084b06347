"""Collating: items stacked into a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import DTypeError, ShapeError
from ..core.tensor import Tensor


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack items along a new axis 0: tensors, arrays and numbers, also in tuples, lists and dicts.

    Python floats become float32, integers int64; arrays and NumPy numbers keep their dtype; text is a list.
    Raises ShapeError if shapes or lengths differ, DTypeError for any other type.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return _stack([item.array for item in batch])
    if isinstance(first, np.ndarray | np.generic):
        return _stack([np.asarray(item) for item in batch])
    if isinstance(first, bool | int | float):
        return Tensor(np.array(batch, np.float32 if any(isinstance(item, float) for item in batch) else None))
    if isinstance(first, str | bytes):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: default_collate([item[key] for item in batch]) for key in first}
    if isinstance(first, Sequence):
        return [default_collate(field) for field in _transposed(batch)]
    raise DTypeError("DataLoader", "tensors, arrays or numbers", type(first).__name__, "give a collate_fn")


def _stack(arrays: list[Any]) -> Tensor:
    shapes = sorted({tuple(array.shape) for array in arrays})
    if len(shapes) != 1:
        raise ShapeError("DataLoader", "items of one shape in a batch", f"{shapes}", "give a collate_fn")
    dtypes = sorted({array.dtype.name for array in arrays})
    if len(dtypes) != 1:
        cure = "cast them in __getitem__"
        raise DTypeError("DataLoader", "items of one dtype in a batch", ", ".join(dtypes), cure)
    return Tensor(np.stack(arrays))


def _transposed(batch: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    lengths = sorted({len(item) for item in batch})
    if len(lengths) != 1:
        raise ShapeError("DataLoader", "items of one length in a batch", f"{lengths}", "give a collate_fn")
    return list(zip(*batch, strict=True))
