"""Sums and products of sparse tensors, with others and with dense ones."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.base.errors import DTypeError, ShapeError, StateError
from ampkit.base.memory_format import sparse_coo
from ampkit.core.autograd.grad_mode import is_grad_enabled
from ampkit.core.tensor import Tensor

from ..argument_checks import broadcast_or_none
from ..indexing.getitem import getitem
from ..shape.join_split import cat
from ..shape.view import transpose
from .creation import to_sparse
from .product import sparse_mm
from .selection import at_places, intersection, matches, on_device
from .tensor import HANDLERS, SparseTensor

__all__: list[str] = []  # `ampkit.sparse` has the functions


def _matrices(where: str, input: Any, mat2: Any) -> None:
    # Raise for what is no pair of matrices whose product there is.
    if not (isinstance(input, Tensor | SparseTensor) and isinstance(mat2, Tensor | SparseTensor)):
        kind = type(mat2 if isinstance(input, Tensor | SparseTensor) else input).__name__
        raise DTypeError(where, "a Tensor", kind)
    if input.ndim != 2 or mat2.ndim not in (1, 2) or mat2.shape[0] != input.shape[1]:
        got = f"{tuple(input.shape)} and {tuple(mat2.shape)}"
        raise ShapeError(where, "matrices [n, M] and [M, K], or [M]", got)


def mm(input: Any, mat2: Any) -> Any:
    """The product of a sparse matrix [n, M] and a dense one [M, K] or vector [M], or of a dense one and a sparse one.

    Dense, [n, K] or [n]. In the category of `matmul` under a policy: 16-bit operands, products and sums in float32.
    Of two sparse matrices, which have one dtype: sparse. Products and sums of 16 bits are float32 there too.
    Raises DTypeError for others, ShapeError for shapes that do not fit.
    """
    if isinstance(input, SparseTensor) and isinstance(mat2, SparseTensor):
        return _sparse_product(input, mat2)
    if isinstance(mat2, SparseTensor):
        if input.ndim == 1:
            return mm(mat2.t(), input)
        return transpose(mm(mat2.t(), transpose(input, -1, -2)), -1, -2)
    _matrices("sparse.mm", input, mat2)
    dense = mat2 if mat2.ndim == 2 else mat2.unsqueeze(-1)
    row, column = input._indices_held[0], input._indices_held[1]
    found = sparse_mm(input._held, dense, row, column, *input.shape)
    return found if mat2.ndim == 2 else found.squeeze(-1)


def mv(input: Any, vec: Any) -> Tensor:
    """The product of a sparse matrix [n, M] and a dense vector [M]. Raises ShapeError for other shapes."""
    if vec.ndim != 1:
        raise ShapeError("mv", "a matrix and a vector", f"{tuple(input.shape)} and {tuple(vec.shape)}")
    return mm(input, vec)


def _sparse_product(input: SparseTensor, mat2: SparseTensor) -> SparseTensor:
    _matrices("sparse.mm", input, mat2)
    if input.dtype != mat2.dtype or mat2.ndim != 2:
        raise DTypeError("sparse.mm", "sparse matrices of one dtype", f"{input.dtype} and {mat2.dtype}", "x.to(dtype)")
    row, along = input._indices_held.numpy(force=True)
    lines, column = mat2._indices_held.numpy(force=True)
    of_second, of_first = matches(lines, along)
    wide = input.dtype in ("float16", "bfloat16")
    left, right = (x.to("float32") if wide else x for x in (input, mat2))
    values = at_places(left, of_first) * at_places(right, of_second)
    places = on_device(np.stack([row[of_first], column[of_second]]), input)
    found = SparseTensor(places, values, (input.shape[0], mat2.shape[1])).coalesce().to(input.dtype)
    return found.to_sparse(input.layout if input.layout == mat2.layout else None)


def bmm(input: Any, mat2: Any) -> Tensor:
    """The products of a sparse_coo [b, n, M] and a dense [b, M, K], one for each of b -> dense [b, n, K].

    Raises DTypeError for other operands, ShapeError for other shapes.
    """
    if not isinstance(input, SparseTensor) or not isinstance(mat2, Tensor):
        raise DTypeError("bmm", "a sparse tensor and a dense one", "a dense and a sparse one", "x.to_dense()")
    if input.ndim != 3 or input.dense_dim() or mat2.ndim != 3 or mat2.shape[:2] != (input.shape[0], input.shape[2]):
        raise ShapeError("bmm", "[b, n, M] and [b, M, K]", f"{tuple(input.shape)} and {tuple(mat2.shape)}")
    b, n, m = input.shape
    which, row, column = input._indices_held[0], input._indices_held[1], input._indices_held[2]
    flat = mat2.reshape(b * m, mat2.shape[2])
    return sparse_mm(input._held, flat, which * n + row, which * m + column, b * n, b * m).reshape(b, n, mat2.shape[2])


def addmm(mat: Any, mat1: Any, mat2: Any, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """beta * mat + alpha * (mat1 @ mat2), dense, of a sparse mat1 or mat2."""
    product = mm(mat1, mat2)
    return beta * mat + (product if alpha == 1 else alpha * product)


def hspmm(mat1: SparseTensor, mat2: Tensor) -> SparseTensor:
    """mat1 @ mat2 of a sparse matrix and a dense one, which stores the rows that mat1 stores elements of."""
    _matrices("hspmm", mat1, mat2)
    rows, place = np.unique(mat1._indices_held[0].numpy(force=True), return_inverse=True)
    row = on_device(place.reshape(-1), mat1)
    values = sparse_mm(mat1._held, mat2, row, mat1._indices_held[1], len(rows), mat1.shape[1])
    return SparseTensor(on_device(rows[None], mat1), values, (mat1.shape[0], mat2.shape[1]), sparse_coo, True)


def smm(mat1: SparseTensor, mat2: Tensor) -> SparseTensor:
    """`hspmm` with an index for each element."""
    found = hspmm(mat1, mat2)
    rows, width = found._indices_held[0].numpy(force=True), mat2.shape[1]
    places = np.stack([np.repeat(rows, width), np.tile(np.arange(width), len(rows))])
    return SparseTensor(on_device(places, mat1), found._held.reshape(-1), found.shape, sparse_coo, True)


def sspaddmm(
    input: SparseTensor, mat1: SparseTensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> SparseTensor:
    """beta * input + alpha * (mat1 @ mat2), sparse, of a sparse input and mat1 and a dense mat2."""
    return add(mul(input, beta), mul(smm(mat1, mat2), alpha))


def add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """input + alpha * other: sparse of two sparse tensors, dense of a sparse and a dense one."""
    if isinstance(input, SparseTensor) and isinstance(other, SparseTensor):
        if input.shape != other.shape or input.sparse_dim() != other.sparse_dim():
            got = f"{tuple(input.shape)} and {tuple(other.shape)}"
            raise ShapeError("add", "sparse tensors of one shape, with as many sparse axes", got)
        values = cat([input._held, other._held if alpha == 1 else other._held * alpha])
        found = SparseTensor(cat([input._indices_held, other._indices_held], 1), values, input.shape)
        return found.to_sparse(input.layout if input.layout == other.layout else None)
    left, right = (x.to_dense() if isinstance(x, SparseTensor) else x for x in (input, other))
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
        raise DTypeError("add", "a tensor beside a sparse one", "a number", "x.to_dense() + number")
    return left + (right if alpha == 1 else right * alpha)


def mul(input: Any, other: Any) -> SparseTensor:
    """The product with a number, or element by element with a tensor that broadcasts, dense or sparse: sparse.

    Of two sparse tensors, which have one shape, but for their dense axes, or no axes.
    """
    if isinstance(other, SparseTensor) and isinstance(input, SparseTensor) and not (input.ndim and other.ndim):
        if input.ndim == other.ndim:
            return to_sparse(input.to_dense() * other.to_dense())
        return mul(input, other.to_dense()) if input.ndim else mul(other, input.to_dense())
    if isinstance(other, SparseTensor):
        if isinstance(input, SparseTensor):
            return intersection(input, other)
        input, other = other, input
    if isinstance(other, Tensor) and other.ndim:
        shape = broadcast_or_none(tuple(input.shape), tuple(other.shape))
        if shape is None:
            raise ShapeError(
                "mul", f"a dense tensor that broadcasts with {tuple(input.shape)}", f"{tuple(other.shape)}"
            )
        spread, dense = _expand(input, shape), other.expand(shape)
        if spread.sparse_dim():
            dense = getitem(dense, tuple(spread._indices_held.unbind(0)))
        return spread._with(spread._held * dense)
    return input._with(input._held * scalar("mul", other))


def _expand(input: SparseTensor, shape: tuple[int, ...]) -> SparseTensor:
    # The tensor, broadcast: stored elements are repeated along its new axes, and its sparse ones of length 1.
    if tuple(input.shape) == shape:
        return input
    new = len(shape) - input.ndim
    before, sparse = (1,) * new + tuple(input.shape), new + input.sparse_dim()
    longer = [d for d in range(sparse) if before[d] != shape[d] or d < new]
    sizes = [shape[d] for d in longer]
    times, stored = prod(sizes), input._nnz()
    grid = np.indices(sizes).reshape(len(sizes), times)
    held = [np.zeros(stored, np.int64)] * new + list(input._indices_held.numpy(force=True))
    rows = [np.repeat(grid[longer.index(d)], stored) if d in longer else np.tile(held[d], times) for d in range(sparse)]
    values = at_places(input, np.tile(np.arange(stored), times)).expand(times * stored, *shape[sparse:])
    places = np.stack(rows) if rows else np.zeros((0, times * stored), np.int64)
    return SparseTensor(on_device(places, input), values, shape, sparse_coo)


def scalar(where: str, other: Any) -> Any:
    """`other`, a number. Raises DTypeError for a tensor with axes."""
    if isinstance(other, SparseTensor) or bool(getattr(other, "ndim", 0)):
        raise DTypeError(where, "a number beside a sparse tensor", f"a {type(other).__name__}", "x.to_dense()")
    return other


def _in_place(name: str) -> Any:
    def change(self: SparseTensor, *given: Any, **options: Any) -> SparseTensor:
        if self.is_leaf and self.requires_grad and is_grad_enabled():
            raise StateError(f"{name}_", "a tensor that is no leaf, or no_grad", "a leaf that requires grad")
        made = getattr(self, name)(*given, **options)
        if not isinstance(made, SparseTensor) or made.shape != self.shape:
            got = f"{tuple(made.shape)}" if isinstance(made, SparseTensor) else "a dense one"
            raise ShapeError(f"{name}_", f"a sparse answer of shape {tuple(self.shape)}", got)
        made = made.to(self.dtype).to_sparse(self.layout)
        self._indices_held, self._held, self._is_coalesced = made._indices_held, made._held, made._is_coalesced
        return self

    change.__doc__ = f"`{name}` in place; of another dtype than the answer, that is cast. -> self."
    return change


HANDLERS |= {
    "mm": mm, "matmul": mm, "spmm": mm, "mv": mv, "bmm": bmm, "add": add, "mul": mul, "multiply": mul,
    "addmm": lambda input, mat1, mat2, *, beta=1, alpha=1: addmm(input, mat1, mat2, beta=beta, alpha=alpha),
    "sub": lambda input, other, *, alpha=1: add(input, other, alpha=-alpha),
    "div": lambda input, other: input._with(input._held / scalar("div", other)),
}  # fmt: skip
for _name, _function in {"bmm": bmm, "smm": smm, "sspaddmm": sspaddmm}.items():
    setattr(SparseTensor, _name, _function)
for _name in ("add", "div", "mul", "sub"):
    setattr(SparseTensor, f"{_name}_", _in_place(_name))
