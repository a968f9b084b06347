"""Collate items into batches, and prefetch batches to a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import backends
from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError, ShapeError
from ..base.masked import need_unmasked
from ..core.arguments import shown
from ..core.dlpack import is_foreign, to_tensor
from ..core.nested import tensors_in, with_tensors
from ..core.tensor import Tensor


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack items along a new axis 0: tensors, arrays and numbers, also in tuples, lists, dicts and named tuples.

    Python floats become float64, as in PyTorch, integers int64; arrays, NumPy numbers and tensors of other libraries
    keep their dtype; text is a list. A tuple becomes a list; any other sequence or mapping keeps its type, if its
    constructor takes one argument.
    Raises ShapeError if shapes or lengths differ, DTypeError for any other type.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return _stack([_need(Tensor, item, "Tensors").array for item in batch])
    if isinstance(first, str | bytes):  # NumPy's too
        return list(batch)
    if isinstance(first, np.ndarray | np.generic):
        return _stack([_unmasked(item) for item in batch])
    if isinstance(first, bool | int | float):
        for item in batch:
            _need(bool | int | float | np.integer | np.floating | np.bool_, item, "real numbers")
        return _numbers(batch)
    if is_foreign(first):
        return _stack([to_tensor(item).array for item in batch])
    if isinstance(first, Mapping):
        return _same_type(first, {key: default_collate([item[key] for item in batch]) for key in _keys(batch)})
    if isinstance(first, Sequence):
        return _same_type(first, [default_collate(field) for field in _transposed(batch)])
    raise DTypeError("DataLoader", "tensors, arrays or numbers", type(first).__name__, "give a collate_fn")


def _numbers(batch: Sequence[Any]) -> Tensor:
    kind = np.float64 if any(isinstance(item, float) for item in batch) else None
    try:
        return Tensor(np.array(batch, kind))
    except OverflowError:
        got, cure = "one that float64 does not hold", "give a collate_fn"
        raise ArgumentError("DataLoader", "numbers that fit a tensor", got, cure) from None


def _need(kind: Any, item: Any, what: str) -> Any:
    # `item`, which has to be of the kind of the batch's first.
    if not isinstance(item, kind):
        raise DTypeError("DataLoader", f"{what} throughout, as the first item is one", shown(item), "give a collate_fn")
    return item


def default_convert(data: Any) -> Any:
    """Convert arrays, NumPy numbers and tensors of other libraries to tensors; keep all other values.

    Those in sequences and mappings, too.
    """
    if isinstance(data, np.ndarray | np.generic) and data.dtype.name in dtypes.NAMES:
        return Tensor(np.array(_unmasked(data), dtypes.parse(data.dtype)))
    if is_foreign(data):
        return to_tensor(data)
    if isinstance(data, Mapping):
        return _same_type(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _same_type(data, [default_convert(value) for value in data])
    return data


def _unmasked(array: Any) -> Any:
    need_unmasked(array, "DataLoader")
    try:
        return np.asarray(array)
    except ValueError:  # rows of several lengths
        raise ShapeError("DataLoader", "arrays or numbers in a batch", shown(array), "give a collate_fn") from None


def _same_type(like: Any, value: Any) -> Any:
    """Convert `value` to the type of `like`; for a plain tuple keep the list, as PyTorch does."""
    if isinstance(like, tuple):
        return type(like)(*value) if hasattr(like, "_fields") else value
    try:
        return value if type(like) is type(value) else type(like)(value)
    except TypeError:  # a range, a defaultdict
        return value


def _keys(batch: Sequence[Mapping[Any, Any]]) -> Any:
    for item in batch:
        if _need(Mapping, item, "mappings").keys() != batch[0].keys():
            got = f"{sorted(map(str, batch[0]))} and {sorted(map(str, item))}"
            raise ShapeError("DataLoader", "items of the same keys in a batch", got, "give a collate_fn")
    return batch[0]


def _stack(arrays: list[Any]) -> Tensor:
    shapes = sorted({tuple(array.shape) for array in arrays})
    if len(shapes) != 1:
        raise ShapeError("DataLoader", "items of one shape in a batch", f"{shapes}", "give a collate_fn")
    kinds = sorted({array.dtype.name for array in arrays})
    if len(kinds) != 1:
        raise DTypeError("DataLoader", "items of one dtype in a batch", ", ".join(kinds), "cast them in __getitem__")
    if kinds[0] not in dtypes.NAMES:
        raise DTypeError("DataLoader", "tensors, arrays or numbers", f"arrays of {kinds[0]}", "give a collate_fn")
    return Tensor(np.stack(arrays))


def _transposed(batch: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    lengths = sorted({len(_need(Sequence, item, "sequences")) for item in batch})
    if len(lengths) != 1:
        raise ShapeError("DataLoader", "items of one length in a batch", f"{lengths}", "give a collate_fn")
    return list(zip(*batch, strict=True))


def prefetch(batches: Iterable[Any], device: str | None = None) -> Iterator[Any]:
    """Iterate over `batches` on `device`; each is copied there while the one before it is used.

    batches: CPU tensors, alone or in tuples, lists or dicts, as a DataLoader yields them. On a GPU they are copied
    through pinned memory on a separate stream, without blocking the host; on a CPU they are passed on unchanged.
    Raises DeviceError for a device that is not available.
    """
    backend = backends.get(device)
    return _copied_ahead(batches, backend) if backend.name != "cpu" else iter(batches)


def _copied_ahead(batches: Iterable[Any], backend: Any) -> Iterator[Any]:
    pending = None
    for batch in batches:
        host = [backends.backend_of(t.array).to_numpy(t.array) for t in tensors_in(batch)]
        copy = batch, backend.staging.bring(host)
        if pending is not None:
            yield _on_device(*pending)
        pending = copy
    if pending is not None:
        yield _on_device(*pending)


def _on_device(batch: Any, ready: Any) -> Any:
    return with_tensors(batch, map(Tensor, ready()))
