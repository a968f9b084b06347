"""Sparse tensors whose stored elements are chosen: of an axis, of two tensors at once, of diagonals, of a product."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import int64
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.base.memory_format import sparse_coo
from ampkit.core.arguments import shown
from ampkit.core.tensor import Tensor

from ..argument_checks import broadcast_or_none, check_index_range, normalize_axis
from ..creation.constants import as_tensor
from ..indexing.index_select import index_select as dense_index_select
from ..pointwise.conversion import to
from ..shape.join_split import cat
from .tensor import HANDLERS, SparseTensor, flat_places

__all__: list[str] = []  # `ampkit.sparse` has the functions


def index_select(input: SparseTensor, dim: int, index: Tensor) -> SparseTensor:
    """The slices at `index` [k] of an axis, in that order, each as often as it is there; sparse_coo.

    Raises RangeError for an index out of range.
    """
    axis = _sparse_axis("index_select", input, dim)
    wanted = to(as_tensor(index), int64).numpy(force=True).reshape(-1)
    check_index_range("index_select", wanted, input.shape[axis])
    held = input._indices_held.numpy(force=True)
    taken, for_which = matches(held[axis], wanted)
    indices = held[:, taken]
    indices[axis] = for_which
    shape = [len(wanted) if d == axis else n for d, n in enumerate(input.shape)]
    return SparseTensor(on_device(indices, input), at_places(input, taken), shape, sparse_coo)


def matches(keys: Any, wanted: Any) -> tuple[Any, Any]:
    """For each of `wanted` [m] the places in `keys` [k] that equal it: those places, and the places in wanted."""
    order = np.argsort(keys, kind="stable")  # equal keys lie together then
    first, behind = (np.searchsorted(keys[order], wanted, side) for side in ("left", "right"))
    counts = behind - first
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return order[starts + np.arange(counts.sum())], np.repeat(np.arange(len(wanted)), counts)


def _sparse_axis(where: str, input: SparseTensor, dim: int) -> int:
    axis = normalize_axis(where, dim, input.ndim)
    if axis >= input.sparse_dim():
        raise ShapeError(where, f"one of the {input.sparse_dim()} sparse axes", f"dim {dim}", "x.to_dense()")
    return axis


def select(input: SparseTensor, dim: int, index: int) -> Any:
    """The slice at an index of a sparse axis, without that axis: sparse_coo, dense where no sparse axis is left."""
    axis = _sparse_axis("select", input, dim)
    n = input.shape[axis]
    found = index_select(input, axis, as_tensor([index + n if -n <= index < 0 else index]))
    kept = [d for d in range(input.sparse_dim()) if d != axis]
    if not kept:
        return found.coalesce()._held.sum(0)
    shape = [n for d, n in enumerate(input.shape) if d != axis]
    return SparseTensor(dense_index_select(found._indices_held, 0, on_device(kept, input)), found._held, shape)


def _getitem(input: SparseTensor, key: Any) -> Any:
    if not isinstance(key, int | np.integer) or isinstance(key, bool):
        raise DTypeError("SparseTensor[...]", "an integer", type(key).__name__, "x.to_dense()[...]")
    return select(input, 0, int(key))


def join(tensors: Any, dim: int = 0) -> SparseTensor:
    """Sparse tensors behind each other along a sparse axis; sparse_coo."""
    axis, places, behind = _sparse_axis("cat", tensors[0], dim), [], 0
    for each in tensors:
        if not isinstance(each, SparseTensor) or each.sparse_dim() != tensors[0].sparse_dim():
            raise DTypeError("cat", "sparse tensors with as many sparse axes", shown(each), "x.to_dense()")
        indices = each._indices_held.numpy(force=True).copy()
        indices[axis] += behind
        places.append(indices)
        behind += each.shape[axis]
    shape = [behind if d == axis else n for d, n in enumerate(tensors[0].shape)]
    if any(
        [n for d, n in enumerate(each.shape) if d != axis] != [*shape[:axis], *shape[axis + 1 :]] for each in tensors
    ):
        raise ShapeError("cat", "shapes that differ along one axis", f"{[tuple(x.shape) for x in tensors]}")
    return SparseTensor(on_device(np.concatenate(places, 1), tensors[0]), cat([x._held for x in tensors]), shape)


def pile(tensors: Any, dim: int = 0) -> SparseTensor:
    """Sparse tensors of one shape along a new axis; sparse_coo."""
    axis = normalize_axis("stack", dim, tensors[0].sparse_dim() + 1)

    def with_axis(x: SparseTensor) -> SparseTensor:
        indices = np.insert(x._indices_held.numpy(force=True), axis, 0, axis=0)
        return SparseTensor(on_device(indices, x), x._held, [*x.shape[:axis], 1, *x.shape[axis:]])

    return join([with_axis(x) if isinstance(x, SparseTensor) else x for x in tensors], axis)


def intersection(input: SparseTensor, other: SparseTensor) -> SparseTensor:
    """input * other, stored where both store an element; dense axes are broadcast."""
    sparse = input.sparse_dim()
    dense = broadcast_or_none(tuple(input.shape[sparse:]), tuple(other.shape[sparse:]))
    if sparse != other.sparse_dim() or input.shape[:sparse] != other.shape[:sparse] or dense is None:
        raise ShapeError("mul", "sparse tensors of one shape", f"{tuple(input.shape)} and {tuple(other.shape)}")
    layout, one, two = input.layout, input.coalesce(), other.coalesce()
    _, left, right = np.intersect1d(_flat(one), _flat(two), assume_unique=True, return_indices=True)
    indices = dense_index_select(one._indices_held, 1, on_device(left, one))
    values = at_places(one, left) * at_places(two, right)
    found = SparseTensor(indices, values, (*input.shape[:sparse], *dense), sparse_coo, True)
    return found.to_sparse(layout)


def sampled_addmm(
    input: SparseTensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0, out: Any = None
) -> SparseTensor:
    """beta * input + alpha * (mat1 @ mat2) at the elements that `input` [n, m] stores; in its layout.

    mat1 [n, k], mat2 [k, m]. Raises ShapeError for others, DTypeError for an input that is not sparse.
    """
    if not isinstance(input, SparseTensor) or out is not None:
        raise DTypeError("sampled_addmm", "a sparse input, and no out", type(input if out is None else out).__name__)
    sizes = (*mat1.shape[:1], *mat2.shape[1:])
    if mat1.ndim != 2 or mat2.ndim != 2 or sizes != tuple(input.shape) or mat1.shape[1] != mat2.shape[0]:
        got = f"{tuple(mat1.shape)} and {tuple(mat2.shape)}"
        raise ShapeError("sampled_addmm", f"matrices whose product is {tuple(input.shape)}", got)
    row, column = input._indices_held[0], input._indices_held[1]
    products = dense_index_select(mat1, 0, row) * dense_index_select(mat2, 1, column).t()
    return input._with(beta * input._held + alpha * products.sum(-1))


def spdiags(diagonals: Tensor, offsets: Tensor, shape: Any, layout: str | None = None) -> SparseTensor:
    """A matrix with these diagonals: element j of diagonals[i] is in column j, and in row j - offsets[i].

    diagonals [k, n], or [n] of one; offsets [k] int64, each once. layout: by default sparse_coo.
    Raises ArgumentError for an offset that is there twice, ShapeError for shapes that do not fit.
    """
    rows_of = diagonals if diagonals.ndim == 2 else diagonals.unsqueeze(0)
    shifts = as_tensor(offsets).numpy(force=True).reshape(-1)
    if rows_of.ndim != 2 or len(shifts) != rows_of.shape[0] or len(tuple(shape)) != 2:
        got = f"{tuple(diagonals.shape)}, {tuple(shifts.shape)} and {tuple(shape)}"
        raise ShapeError("spdiags", "diagonals [k, n], offsets [k] and a shape of 2 axes", got)
    if len(set(shifts.tolist())) != len(shifts):
        raise ArgumentError("spdiags", "each offset once", f"{shifts.tolist()}")
    column = np.broadcast_to(np.arange(rows_of.shape[1]), rows_of.shape)
    row = column - shifts[:, None]
    inside = (row >= 0) & (row < shape[0]) & (column < shape[1])
    indices = np.stack([row[inside], column[inside]]).astype(np.int64)
    values = dense_index_select(rows_of.reshape(-1), 0, on_device(np.flatnonzero(inside), rows_of))
    return SparseTensor(on_device(indices, rows_of), values, tuple(shape), sparse_coo).to_sparse(layout)


def _flat(input: SparseTensor) -> Any:
    return flat_places(input._indices_held.numpy(force=True), input.shape)


def on_device(indices: Any, like: SparseTensor | Tensor) -> Tensor:
    """An int64 array as a Tensor on the device of `like`."""
    return Tensor(np.asarray(indices, np.int64)).to(like.device)


def at_places(input: SparseTensor, places: Any) -> Tensor:
    """The stored elements at `places` [m] among them."""
    return dense_index_select(input._held, 0, on_device(places, input))


HANDLERS |= {"index_select": index_select, "select": select, "cat": join, "concat": join, "stack": pile}
setattr(SparseTensor, "index_select", index_select)  # noqa: B010 - defined behind the class
setattr(SparseTensor, "select", select)  # noqa: B010
setattr(SparseTensor, "__getitem__", _getitem)  # noqa: B010
