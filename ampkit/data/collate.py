"""Collating: items stacked into a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base import dtypes
from ..base.errors import DTypeError, ShapeError
from ..core.tensor import Tensor


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack items along a new axis 0: tensors, arrays and numbers, also in tuples, lists, dicts and named tuples.

    Python floats become float32, integers int64; arrays and NumPy numbers keep their dtype; text is a list. A tuple
    becomes a list, a named tuple and any other kind of sequence or mapping one of its kind, if that can be made of one.
    Raises ShapeError if shapes or lengths differ, DTypeError for any other type.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return _stack([item.array for item in batch])
    if isinstance(first, str | bytes):  # NumPy's too
        return list(batch)
    if isinstance(first, np.ndarray | np.generic):
        return _stack([np.asarray(item) for item in batch])
    if isinstance(first, bool | int | float):
        return Tensor(np.array(batch, np.float32 if any(isinstance(item, float) for item in batch) else None))
    if isinstance(first, Mapping):
        return _kind(first, {key: default_collate([item[key] for item in batch]) for key in _keys(batch)})
    if isinstance(first, Sequence):
        return _kind(first, [default_collate(field) for field in _transposed(batch)])
    raise DTypeError("DataLoader", "tensors, arrays or numbers", type(first).__name__, "give a collate_fn")


def default_convert(data: Any) -> Any:
    """Arrays and NumPy numbers as tensors, also in sequences and mappings; all else as it is."""
    if isinstance(data, np.ndarray | np.generic) and data.dtype.name in dtypes.NAMES:
        return Tensor(np.array(data, dtypes.parse(data.dtype)))
    if isinstance(data, Mapping):
        return _kind(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _kind(data, [default_convert(value) for value in data])
    return data


def _kind(like: Any, made: Any) -> Any:
    # PyTorch's kinds: those that one argument makes, named tuples of their fields, and of a tuple a list.
    if isinstance(like, tuple):
        return type(like)(*made) if hasattr(like, "_fields") else made
    try:
        return made if type(like) is type(made) else type(like)(made)
    except TypeError:  # a range, a defaultdict
        return made


def _keys(batch: Sequence[Mapping[Any, Any]]) -> Any:
    for item in batch:
        if item.keys() != batch[0].keys():
            got = f"{sorted(map(str, batch[0]))} and {sorted(map(str, item))}"
            raise ShapeError("DataLoader", "items of the same keys in a batch", got, "give a collate_fn")
    return batch[0]


def _stack(arrays: list[Any]) -> Tensor:
    shapes = sorted({tuple(array.shape) for array in arrays})
    if len(shapes) != 1:
        raise ShapeError("DataLoader", "items of one shape in a batch", f"{shapes}", "give a collate_fn")
    kinds = sorted({array.dtype.name for array in arrays})
    if len(kinds) != 1:
        cure = "cast them in __getitem__"
        raise DTypeError("DataLoader", "items of one dtype in a batch", ", ".join(kinds), cure)
    if kinds[0] not in dtypes.NAMES:
        raise DTypeError("DataLoader", "tensors, arrays or numbers", f"arrays of {kinds[0]}", "give a collate_fn")
    return Tensor(np.stack(arrays))


def _transposed(batch: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    lengths = sorted({len(item) for item in batch})
    if len(lengths) != 1:
        raise ShapeError("DataLoader", "items of one length in a batch", f"{lengths}", "give a collate_fn")
    return list(zip(*batch, strict=True))
