"""Collate items into batches, and prefetch batches to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import backends
from ..base import dtypes
from ..base.array_kinds import need_unmasked
from ..base.errors import ArgumentError, DTypeError, ShapeError
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
    return collate(batch, collate_fn_map=default_collate_fn_map)


def collate(batch: Sequence[Any], *, collate_fn_map: Mapping[Any, Callable[..., Any]] | None = None) -> Any:
    """Make one value of a batch's items by the function of their type, also in sequences and mappings, as PyTorch does.

    collate_fn_map: by a type, or a tuple of types, a function of `batch` and, by name, `collate_fn_map`; that of the
    first item's own type comes before those of its bases. `default_collate_fn_map` is that of `default_collate`, which
    a change of it changes. Raises ShapeError if lengths differ, DTypeError for a type that has no function.
    """
    first, functions = batch[0], collate_fn_map or {}
    if type(first) in functions:
        return functions[type(first)](batch, collate_fn_map=collate_fn_map)
    for kind, function in functions.items():
        if isinstance(first, kind):
            return function(batch, collate_fn_map=collate_fn_map)
    if is_foreign(first) and functions:
        return _stack([to_tensor(item).array for item in batch])
    if isinstance(first, Mapping):
        parts = {key: collate([item[key] for item in batch], collate_fn_map=collate_fn_map) for key in _keys(batch)}
        return _same_type(first, parts)
    if isinstance(first, Sequence) and not isinstance(first, str | bytes):
        fields = _transposed(batch)
        return _same_type(first, [collate(field, collate_fn_map=collate_fn_map) for field in fields])
    raise DTypeError("DataLoader", "tensors, arrays or numbers", type(first).__name__, "give a collate_fn")


def collate_tensor_fn(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Tensor:
    """Stack tensors of one shape and dtype."""
    return _stack([_need(Tensor, item, "Tensors").array for item in batch])


def collate_str_fn(batch: Sequence[Any], *, collate_fn_map: Any = None) -> list[Any]:
    """A list of the texts."""
    return list(batch)


def collate_numpy_array_fn(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Tensor:
    """Stack NumPy arrays, or NumPy's numbers, of one shape and dtype."""
    return _stack([_unmasked(item) for item in batch])


def collate_float_fn(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Tensor:
    """A tensor of Python's numbers."""
    for item in batch:
        _need(bool | int | float | np.integer | np.floating | np.bool_, item, "real numbers")
    return _numbers(batch)


collate_numpy_scalar_fn, collate_int_fn = collate_numpy_array_fn, collate_float_fn
default_collate_fn_map: dict[Any, Callable[..., Any]] = {
    Tensor: collate_tensor_fn,
    str: collate_str_fn,  # also NumPy's
    bytes: collate_str_fn,
    np.ndarray: collate_numpy_array_fn,
    np.generic: collate_numpy_array_fn,
    float: collate_float_fn,
    int: collate_float_fn,
}


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
