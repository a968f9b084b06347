"""Registers embedding, index_select, gather, scatter and scatter_add as kernels, by what a backend copies and adds by
index; and the indices that are one of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import Array, DType
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.ops.argument_checks import check_index_range
from ampkit.ops.indexing.deterministic_scatter import add_at
from ampkit.ops.indexing.gather_scatter import gather, scatter_, scatter_add, trim_to_index
from ampkit.ops.indexing.index_select import index_select
from ampkit.ops.nn.embedding import check_indices, embedding_

from .registration import on


def register_embedding(
    backend: str, taken_rows: Any, summed_rows: Any, fits: Any, backward_fits: Any, view: Any = None
) -> None:
    """Register embedding. taken_rows(x [a, rows, c], keys [...]) -> [a, n, c]. summed_rows(values, keys, rows, dtype,
    skipped) -> the sums [1, rows, c] of the values [1, n, c] per key but one, read by view(values, shape) if given.
    """

    def forward(input: Array, weight: Array, padding_idx: int | None, *, dtype: DType) -> Any:
        check_indices(input, len(weight))
        out = taken_rows(weight[None], input)
        return out.reshape(*input.shape, weight.shape[1]), Saved(input=input, rows=len(weight))

    def backward(dy: Array, saved: Saved, needs: Any, padding_idx: int | None) -> Any:
        rows = dy if view is None else view(dy, (1, saved.input.size, dy.shape[-1]))
        skipped = -1 if padding_idx is None else padding_idx % saved.rows
        return None, summed_rows(rows, saved.input, saved.rows, needs[1], skipped)[0]

    on(embedding_, backend, forward, fits)
    on(embedding_.backward_primitive, backend, backward, backward_fits)


def register_index_select(backend: str, taken_rows: Any, fits: Any, view: Any = None, min_elements: int = 0) -> None:
    """Register index_select, by functions as those of `register_embedding`."""

    def forward(input: Array, dim: int, index: Array, *, dtype: DType) -> Any:
        at = dim % input.ndim
        before, n, behind = input.shape[:at], input.shape[at], input.shape[at + 1 :]
        check_index_range("index_select", index, n)
        sizes = prod(before), n, prod(behind)
        out = taken_rows(input.reshape(sizes) if view is None else view(input, sizes), index)
        return out.reshape(*before, index.size, *behind), Saved(index=index, shape=input.shape)

    on(index_select, backend, forward, fits, min_elements=min_elements)


@dataclass(frozen=True)
class AlongAxis:
    """How a backend copies and adds elements at `index` along an axis.

    gathered(x, index, dim) -> the elements, in the shape of index. scattered(x, values, index, dim) -> a copy of x with
    `values`, which broadcast to index, or zeros for None, written there; of several the last. scatter_added(values,
    index, dim, shape, dtype, start=None) -> `start` or zeros of `shape`, with the values added. cast(array, dtype).
    Predicates: fits(x, dim, index, *src); readable(*arrays); sums_fit, of the gradient of gather. checks: whether the
    functions check the range of the index.
    """

    backend: str
    gathered: Callable[..., Any]
    scattered: Callable[..., Any]
    scatter_added: Callable[..., Any]
    cast: Callable[..., Any]
    fits: Callable[..., bool]
    readable: Callable[..., bool]
    sums_fit: Callable[..., bool]
    checks: bool


def register_gather_scatter(along: AlongAxis) -> None:
    """Register gather, scatter and scatter_add."""
    gathered, scattered, scatter_added, cast = along.gathered, along.scattered, along.scatter_added, along.cast
    fits, checks = along.fits, along.checks

    def gather_(input: Array, dim: int, index: Array, *, dtype: DType) -> Any:
        if not checks:
            check_index_range("gather", index, input.shape[dim])
        return gathered(input, index, dim), Saved(index=index, shape=input.shape)

    def gather_backward(dy: Array, saved: Saved, needs: Any, dim: int) -> Any:
        return scatter_added(dy, saved.index, dim, saved.shape, needs[0]), None

    def scatter(input: Array, dim: int, index: Array, src: Any, *, dtype: DType) -> Any:
        if not checks:
            check_index_range("scatter", index, input.shape[dim])
        input, is_array = cast(input, dtype), hasattr(src, "dtype")
        values = cast(trim_to_index(src, index.shape), dtype) if is_array else np.full_like(input, src, shape=1)
        return scattered(input, values, index, dim), Saved(index=index, size=getattr(src, "shape", ()))

    def scatter_backward(dy: Array, saved: Saved, needs: Any, dim: int) -> Any:
        dx = scattered(dy, None, saved.index, dim) if needs[0] else None
        return dx, None, gathered(dy, saved.index, dim) if needs[2] else None

    def scatter_add_(input: Array, dim: int, index: Array, src: Array, *, dtype: DType) -> Any:
        if not checks:
            check_index_range("scatter_add", index, input.shape[dim])
        out = scatter_added(trim_to_index(src, index.shape), index, dim, input.shape, dtype, input)
        return out, Saved(index=index, size=src.shape)

    def scatter_add_backward(dy: Array, saved: Saved, needs: Any, dim: int) -> Any:
        return dy, None, gathered(dy, saved.index, dim) if needs[2] else None

    def scatter_add_fits(input: Array, dim: int, index: Array, src: Array) -> bool:
        return fits(input, dim, index) and along.readable(input, src)

    def backward_fits(dy: Array, saved: Saved, needs: Any, dim: int) -> bool:
        return fits(dy, dim, saved.index) and saved.size in ((), saved.index.shape)

    on(gather, along.backend, gather_, fits)
    on(gather.backward_primitive, along.backend, gather_backward, along.sums_fit)
    on(scatter_, along.backend, scatter, fits)
    on(scatter_.backward_primitive, along.backend, scatter_backward, backward_fits)
    on(scatter_add, along.backend, scatter_add_, scatter_add_fits)
    on(scatter_add.backward_primitive, along.backend, scatter_add_backward, backward_fits)


def register_add_at(
    backend: str, flat: Any, summed: Any, fits: Any, min_elements: int = 0, plain: Any = lambda index, ndim: index
) -> Callable[..., Array]:
    """Register add_at, the gradient of x[index]; returns the kernel, which also takes the dtype of the result.

    flat: see `row_index`. summed(values, keys, sizes, dtype): the sums [before, rows, behind] of values by key.
    plain(index, ndim): the index without what `row_index` does not take.
    """

    def added(values: Array, index: Any, shape: tuple[int, ...], dtype: DType | None = None) -> Array:
        """Zeros of `shape` with `values` added at [index]."""
        keys, sizes, result = row_index(plain(index, len(shape)), shape, flat)
        if result != values.shape:
            raise UnsupportedError
        return summed(values, keys, sizes, values.dtype if dtype is None else dtype).reshape(shape)

    on(add_at, backend, added, fits, min_elements=min_elements)
    return added


class RowIndex(NamedTuple):
    """An index as one of rows: an array of `shape` is [before, rows, behind], and keys [n] name rows."""

    keys: Array
    sizes: tuple[int, int, int]
    result: tuple[int, ...]  # the shape of array[index]


def row_index(index: Any, shape: tuple[int, ...], flat: Callable[[list[Array], tuple[int, ...]], Array]) -> RowIndex:
    """`index` as a RowIndex, where it is integer arrays for axes side by side, and else full slices.

    flat(arrays, lengths) -> their flat indices, int64, into axes of these lengths; negative ones count from the end.
    Raises UnsupportedError for another index.
    """
    parts = index if type(index) is tuple else (index,)
    at = [i for i, part in enumerate(parts) if hasattr(part, "dtype")]
    arrays = [parts[i] for i in at]
    full = all(type(part) is slice and part == slice(None) for i, part in enumerate(parts) if i not in at)
    if (
        len(parts) > len(shape)
        or not at
        or not full
        or at[-1] - at[0] >= len(at)
        or any(a.dtype.kind not in "iu" for a in arrays)
    ):
        raise UnsupportedError
    lengths = shape[at[0] : at[-1] + 1]
    named = arrays[0].shape if len(arrays) == 1 else np.broadcast_shapes(*[a.shape for a in arrays])
    before, behind = shape[: at[0]], shape[at[-1] + 1 :]
    return RowIndex(
        flat(arrays, lengths).reshape(-1), (prod(before), prod(lengths), prod(behind)), (*before, *named, *behind)
    )
