"""Searching and sets: nonzero, unique, isin, searchsorted, bucketize. The results take no gradient."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator, bfloat16, is_float
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.base.formats import need_arithmetic
from ampkit.core.arguments import without_numpy
from ampkit.core.casts import to_accumulator
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor

from ..argument_checks import check_index_range, normalize_axis_of, parse_shape
from ..tensor_info import result_type

__all__ = ["argwhere", "bucketize", "isin", "nonzero", "searchsorted", "unique", "unique_consecutive", "unravel_index"]


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Indices of the nonzero elements in row-major order: [n, axes] int64; as_tuple=True: one tensor [n] per axis."""
    need_arithmetic("nonzero", input)
    if as_tuple:
        return tuple(Tensor(f) for f in np.nonzero(np.atleast_1d(input.array)))
    if not input.ndim:
        return Tensor(np.zeros((int(bool(input.array != 0)), 0), np.int64))
    x = input.array if input.array.dtype == np.bool_ else input.array != 0
    if type(x) is not np.ndarray:
        return Tensor(np.stack(np.nonzero(x), -1))
    flat = np.flatnonzero(x)  # in one pass; NumPy's own search of several axes takes far longer
    found = np.empty((flat.size, x.ndim), np.int64)
    for axis in range(x.ndim - 1, 0, -1):
        rows = flat // max(x.shape[axis], 1)
        np.subtract(flat, rows * x.shape[axis], out=found[:, axis])
        flat = rows
    found[:, 0] = flat
    return Tensor(found)


def argwhere(input: Tensor) -> Tensor:
    """`nonzero`: the indices of the nonzero elements in row-major order, [n, axes] int64."""
    return nonzero(input)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements, or the distinct slices along `dim`, always in ascending order. NaN differs from NaN.

    return_inverse: also the index of each input element in the result; return_counts: also the counts; int64.
    """
    need_arithmetic("unique", input)
    at = None if dim is None else normalize_axis_of("unique", input, dim)
    stored = input.array.dtype
    wide = input.array.astype(accumulator(stored)) if is_float(stored) else input.array
    if not (return_inverse or return_counts):
        distinct = _distinct_integers(wide) if at is None else None
        return Tensor(np.unique(wide, axis=at, equal_nan=False).astype(stored) if distinct is None else distinct)
    found = np.unique(wide, return_inverse=True, return_counts=True, axis=at, equal_nan=False)
    inverse = found[1].reshape(input.shape if at is None else -1)
    outs = [Tensor(found[0].astype(stored))]
    outs += [Tensor(inverse.astype(np.int64))] if return_inverse else []
    outs += [Tensor(found[2].astype(np.int64))] if return_counts else []
    return tuple(outs)


def _distinct_integers(x: Any) -> Any:
    """The distinct elements of integers on a CPU that lie close together, by marking them in order; else None."""
    if type(x) is not np.ndarray or x.dtype.kind not in "iu" or not x.size:
        return None
    low = int(x.min())
    span = int(x.max()) - low + 1
    if span > max(x.size // 4, 1 << 16):
        return None
    seen = np.zeros(span, np.bool_)
    seen[np.subtract(x.reshape(-1), low, dtype=np.int64)] = True
    return (np.flatnonzero(seen) + low).astype(x.dtype)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The flattened input, or its slices along `dim`, without consecutive duplicates; NaN differs from NaN.

    return_inverse: also the index of each input element in the result; return_counts: also the run lengths; int64.
    """
    need_arithmetic("unique_consecutive", input)
    at = None if dim is None else normalize_axis_of("unique_consecutive", input, dim)
    rows = input.array.reshape(-1) if at is None else np.moveaxis(input.array, at, 0)
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    differ = (flat[1:] != flat[:-1]).any(1)
    new = np.concatenate([np.ones_like(differ, shape=1), differ])[: len(rows)]
    indices = np.cumsum(new) - 1
    distinct = rows[new]
    outs = [Tensor(distinct if at is None else np.moveaxis(distinct, 0, at))]
    outs += [Tensor(indices.reshape(input.shape if at is None else -1).astype(np.int64))] if return_inverse else []
    outs += [Tensor(np.bincount(indices, minlength=len(distinct)).astype(np.int64))] if return_counts else []
    return outs[0] if len(outs) == 1 else tuple(outs)


def isin(
    elements: Tensor | float, test_elements: Tensor | float, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each of `elements` is among `test_elements` (tensors or a number), as bool; invert: whether it is not."""
    need_arithmetic("isin", elements, test_elements)
    backend = next(
        (backends.backend_of(e.array) for e in (elements, test_elements) if isinstance(e, Tensor)), backends.cpu
    )
    agreed = result_type(elements, test_elements).dtype
    with ignore_fp_errors():
        found = [(e.array if isinstance(e, Tensor) else backend.asarray(e)) for e in (elements, test_elements)]
        wide = [f.astype(agreed).astype(accumulator(agreed)) if is_float(agreed) else f for f in found]
    return Tensor(np.isin(wide[0], wide[1], assume_unique=assume_unique, invert=invert))


def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The indices at which `input` (a tensor or a number) would be inserted into ascending sequences.

    Before equal elements, or after them with right=True.

    sorted_sequence [n], input [...] -> [...], or sequences [..., n] with input [..., m] -> [..., m]; int64, or int32.
    side="right" is right=True. sorter: indices that sort the sequences. Raises ShapeError for shapes that do not match.
    """
    need_arithmetic("searchsorted", sorted_sequence, input)
    if not sorted_sequence.ndim:
        raise ShapeError("searchsorted", "a sorted_sequence [..., n]", "shape ()")
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ArgumentError("searchsorted", "side 'left' or 'right', as `right` says", f"{side!r}, right={right}")
    if sorter is not None:
        if sorter.array.dtype != np.int64 or sorter.shape != sorted_sequence.shape:
            needs = f"sorter as int64 of shape {tuple(sorted_sequence.shape)}"
            raise ShapeError("searchsorted", needs, f"{sorter.dtype.name} of shape {tuple(sorter.shape)}")
        check_index_range("searchsorted", sorter.array, sorted_sequence.shape[-1])
    backend = backends.backend_of(sorted_sequence.array)
    values = (input if isinstance(input, Tensor) else _as_element(input, sorted_sequence)).array
    rows, order = sorted_sequence.array, None if sorter is None else sorter.array
    rows = rows if order is None else np.take_along_axis(rows, order, -1)
    rows, values = [to_accumulator(a) if a.dtype == bfloat16 else a for a in (rows, values)]  # which sorts NaN last
    where: Literal["left", "right"] = "right" if right or side == "right" else "left"
    if rows.ndim == 1:
        found = backend.asarray(np.searchsorted(rows, values, where))
    elif not values.ndim or rows.shape[:-1] != values.shape[:-1]:
        raise ShapeError("searchsorted", f"input [{', '.join(map(str, rows.shape[:-1]))}, m]", f"{tuple(values.shape)}")
    elif not values.size:
        found = np.zeros_like(values, np.int64)
    else:
        count = math.prod(rows.shape[:-1])
        pairs = zip(rows.reshape(count, rows.shape[-1]), values.reshape(count, values.shape[-1]), strict=True)
        found = np.stack([np.searchsorted(row, value, where) for row, value in pairs]).reshape(values.shape)
    return Tensor(found.astype(np.int32 if out_int32 else np.int64))


def _as_element(number: Any, sequence: Tensor) -> Tensor:
    # A number in the dtype of a sequence of floats; one of integers need not hold it.
    number = without_numpy(number)
    dtype = sequence.dtype if is_float(sequence.array.dtype) and isinstance(number, (int, float)) else None
    return tensor(number, dtype, sequence.device)


def bucketize(input: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The interval between ascending boundaries [n] of each element, 0 to n; see `searchsorted`.

    Raises ShapeError unless boundaries is a vector.
    """
    if boundaries.ndim != 1:
        raise ShapeError("bucketize", "boundaries [n]", f"shape {tuple(boundaries.shape)}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Convert flat indices to indices along each axis of `shape`: one int64 tensor like indices per axis.

    Raises DTypeError for floats, RangeError for an index outside `shape`.
    """
    axes = parse_shape("unravel_index", (shape,))
    at, count = indices.array, math.prod(axes)
    if at.dtype.kind not in "iu":
        raise DTypeError("unravel_index", "integers", indices.dtype.name)
    wide = at.astype(np.int64).reshape(-1)  # a size may be beyond a narrow dtype
    check_index_range("unravel_index", wide.reshape(at.shape), count)
    steps = [math.prod(axes[i + 1 :]) for i in range(len(axes))]
    found = [wide // max(step, 1) % max(n, 1) for step, n in zip(steps, axes, strict=True)]
    return tuple(Tensor(indices.reshape(at.shape)) for indices in found)
