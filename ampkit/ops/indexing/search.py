"""Searching and sets: nonzero, unique, isin, searchsorted, bucketize. The results take no gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator, is_float
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor

from ..argument_checks import normalize_axis_of, parse_shape

__all__ = ["argwhere", "bucketize", "isin", "nonzero", "searchsorted", "unique", "unique_consecutive", "unravel_index"]


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Where input is not 0, in row-major order: [n, axes] int64; with as_tuple one tensor [n] per axis."""
    found = np.nonzero(np.atleast_1d(input.array) if as_tuple else input.array != 0) if input.ndim or as_tuple else None
    if as_tuple:
        return tuple(Tensor(f) for f in found or ())
    if found is None:
        return Tensor(np.zeros((int(bool(input.array != 0)), 0), np.int64))
    return Tensor(np.stack(found, -1))


def argwhere(input: Tensor) -> Tensor:
    """Where input is not 0, in row-major order: [n, axes] int64."""
    return nonzero(input)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements in rising order, or the distinct slices along `dim`; always sorted. NaN differs from NaN.

    return_inverse: also where each element of input went; return_counts: also how often each came; int64.
    """
    at = None if dim is None else normalize_axis_of("unique", input, dim)
    wide = input.array.astype(accumulator(input.dtype)) if is_float(input.dtype) else input.array
    found = np.unique(wide, return_inverse=True, return_counts=True, axis=at, equal_nan=False)
    inverse = found[1].reshape(input.shape if at is None else -1)
    outs = [Tensor(found[0].astype(input.dtype))]
    outs += [Tensor(inverse.astype(np.int64))] if return_inverse else []
    outs += [Tensor(found[2].astype(np.int64))] if return_counts else []
    return outs[0] if len(outs) == 1 else tuple(outs)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """input, flat, or the slices along `dim`, without those that equal the one before; NaN differs from NaN.

    return_inverse: also where each element went; return_counts: also how many of each followed another; int64.
    """
    at = None if dim is None else normalize_axis_of("unique_consecutive", input, dim)
    rows = input.array.reshape(-1) if at is None else np.moveaxis(input.array, at, 0)
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    differ = (flat[1:] != flat[:-1]).any(1)
    new = np.concatenate([np.ones_like(differ, shape=1), differ])[: len(rows)]
    places = np.cumsum(new) - 1
    kept = rows[new]
    outs = [Tensor(kept if at is None else np.moveaxis(kept, 0, at))]
    outs += [Tensor(places.reshape(input.shape if at is None else -1).astype(np.int64))] if return_inverse else []
    outs += [Tensor(np.bincount(places, minlength=len(kept)).astype(np.int64))] if return_counts else []
    return outs[0] if len(outs) == 1 else tuple(outs)


def isin(
    elements: Tensor | float, test_elements: Tensor | float, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each of `elements` is among `test_elements` (tensors or a number), as bool; invert: whether it is not."""
    home = next(
        (backends.backend_of(e.array) for e in (elements, test_elements) if isinstance(e, Tensor)), backends.cpu
    )
    found = [e.array if isinstance(e, Tensor) else home.asarray(e) for e in (elements, test_elements)]
    wide = [f.astype(accumulator(f.dtype)) if is_float(f.dtype) else f for f in found]
    return Tensor(np.isin(*wide, assume_unique=assume_unique, invert=invert))


def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where `input` (a tensor or a number) would stand in rising sequences: before equal ones, or after with right.

    sorted_sequence [n], input [...] -> [...], or sequences [..., n] with input [..., m] -> [..., m]; int64, or int32.
    side="right" is right=True. sorter: the order that sorts the sequences. Raises ShapeError for shapes that differ.
    """
    if not sorted_sequence.ndim:
        raise ShapeError("searchsorted", "a sorted_sequence [..., n]", "shape ()")
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ArgumentError("searchsorted", "side 'left' or 'right', as `right` says", f"{side!r}, right={right}")
    if sorter is not None:
        _check_sorter(sorted_sequence, sorter)
    home = backends.backend_of(sorted_sequence.array)
    values = (input if isinstance(input, Tensor) else tensor(input, device=sorted_sequence.device)).array
    rows, order = sorted_sequence.array, None if sorter is None else sorter.array
    rows = rows if order is None else np.take_along_axis(rows, order, -1)
    where = "right" if right or side == "right" else "left"
    if rows.ndim == 1:
        found = home.asarray(np.searchsorted(rows, values, where))
    elif not values.ndim or rows.shape[:-1] != values.shape[:-1]:
        raise ShapeError("searchsorted", f"input [{', '.join(map(str, rows.shape[:-1]))}, m]", f"{tuple(values.shape)}")
    elif not values.size:
        found = np.zeros_like(values, np.int64)
    else:
        count = math.prod(rows.shape[:-1])
        pairs = zip(rows.reshape(count, rows.shape[-1]), values.reshape(count, values.shape[-1]), strict=True)
        found = np.stack([np.searchsorted(row, value, where) for row, value in pairs]).reshape(values.shape)
    return Tensor(found.astype(np.int32 if out_int32 else np.int64))


def _check_sorter(sequence: Tensor, sorter: Tensor) -> None:
    if sorter.dtype != np.int64 or sorter.shape != sequence.shape:
        needs = f"sorter as int64 of shape {tuple(sequence.shape)}"
        raise ShapeError("searchsorted", needs, f"{sorter.dtype.name} of shape {tuple(sorter.shape)}")
    places, length = sorter.array, sequence.shape[-1]

    def fail(value: int, position: Any) -> None:
        raise RangeError("searchsorted", f"sorter from 0 to {length - 1}", f"{value} at position {position}")

    backends.backend_of(places).raise_if(places, (places < 0) | (places >= length), fail)


def bucketize(input: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Which of the intervals between rising boundaries [n] each element is in, 0 to n; see `searchsorted`.

    Raises ShapeError for boundaries that are no vector.
    """
    if boundaries.ndim != 1:
        raise ShapeError("bucketize", "boundaries [n]", f"shape {tuple(boundaries.shape)}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Positions in row-major order as places along each axis of `shape`: int64 tensors like indices, one per axis.

    Raises DTypeError for floats, RangeError for a position that `shape` does not have.
    """
    axes = parse_shape("unravel_index", (shape,))
    at, count = indices.array, math.prod(axes)
    if at.dtype.kind not in "iu":
        raise DTypeError("unravel_index", "integers", indices.dtype.name)

    def fail(value: int, position: Any) -> None:
        raise RangeError("unravel_index", f"positions from 0 to {count - 1}", f"{value} at {position}")

    wide = at.astype(np.int64).reshape(-1)  # a size may be beyond a narrow dtype
    backends.backend_of(at).raise_if(at, ((wide < 0) | (wide >= count)).reshape(at.shape), fail)
    steps = [math.prod(axes[i + 1 :]) for i in range(len(axes))]
    found = [wide // max(step, 1) % max(n, 1) for step, n in zip(steps, axes, strict=True)]
    return tuple(Tensor(places.reshape(at.shape)) for places in found)
