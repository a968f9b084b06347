"""SparseTensor: a tensor that stores some of its elements, with their indices; the others are 0."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ampkit.base.memory_format import sparse_coo, sparse_csc, sparse_csr
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_base import Shape

from ..argument_checks import check_methods, normalize_axis
from ..creation.constants import zeros
from ..indexing.getitem import getitem
from ..indexing.index_select import index_add, index_put
from ..shape.join_split import cat, stack
from ..shape.view import transpose
from .product import sparse_mm

__all__: list[str] = []  # `ampkit.sparse` has the class

COMPRESSED = {sparse_csr: 0, sparse_csc: 1}  # by layout, the axis by which elements are ordered


class SparseTensor:
    """Elements `values` [k] at `indices` [d, k] of a tensor of d axes, in one of three layouts.

    values are an ordinary tensor: gradients flow to it, and to the dense operand of a product. In sparse_coo elements
    of equal indices are added; `coalesce` stores their sums. sparse_csr and sparse_csc are for matrices, ordered by
    rows and by columns. Under a policy the product with a dense matrix is in the category of `matmul`; the others are
    those of their dense op.
    Ops that are not defined for sparse tensors raise DTypeError, with `to_dense()` as the cure.
    """

    __slots__ = ("__dict__", "__weakref__", "_held", "_indices_held", "_is_coalesced", "layout", "shape")

    def __init__(self, indices: Tensor, values: Tensor, shape: Any, layout: str = sparse_coo, coalesced: Any = False):
        self._indices_held, self._held, self.shape = indices, values, Shape(shape)
        self.layout, self._is_coalesced = layout, coalesced

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name: str = getattr(func, "name", None) or getattr(func, "__name__", "") or ""
        handler = HANDLERS.get(name.strip("_"))
        if handler is None:
            raise DTypeError(name, "dense tensors", "a sparse one", "x.to_dense()")
        return handler(*args, **(kwargs or {}))

    dtype = property(lambda self: self._held.dtype)
    device = property(lambda self: self._held.device)
    ndim = property(lambda self: len(self.shape))
    requires_grad = property(lambda self: self._held.requires_grad)
    is_leaf = property(lambda self: self._held.is_leaf)
    is_sparse = property(lambda self: self.layout == sparse_coo)
    is_sparse_csr = property(lambda self: self.layout == sparse_csr)
    is_cuda = property(lambda self: self._held.is_cuda)
    T = property(lambda self: self.t())

    @property
    def grad(self) -> Any:
        """The gradient of the values, sparse with the same indices, or None."""
        found = self._held.grad
        return None if found is None else self._with(found)

    def _with(self, values: Tensor, shape: Any = None, indices: Tensor | None = None) -> SparseTensor:
        kept = indices is None
        return SparseTensor(
            self._indices_held if indices is None else indices,
            values,
            self.shape if shape is None else shape,
            self.layout,
            self._is_coalesced and kept,
        )

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the length of an axis."""
        return self.shape if dim is None else self.shape[normalize_axis("size", dim, self.ndim)]

    def dim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements, stored or not."""
        return prod(self.shape)

    def sparse_dim(self) -> int:
        """The number of axes that indices have: all."""
        return self.ndim

    def dense_dim(self) -> int:
        """The number of axes that values have more: 0."""
        return 0

    def _nnz(self) -> int:
        return self._held.shape[0]

    def _indices(self) -> Tensor:
        return self._indices_held

    def _values(self) -> Tensor:
        return self._held

    def is_coalesced(self) -> bool:
        """Whether indices are in order, and each once."""
        return self._is_coalesced

    def indices(self) -> Tensor:
        """The indices [d, k]. Raises StateError for a tensor that is not coalesced, or not sparse_coo."""
        self._need("indices", sparse_coo)
        return self._coalesced("indices")._indices_held

    def values(self) -> Tensor:
        """The stored elements [k]. Raises StateError for a tensor that is not coalesced."""
        return self._coalesced("values")._held

    def _coalesced(self, name: str) -> SparseTensor:
        if not self._is_coalesced:
            raise StateError(f"SparseTensor.{name}", "a coalesced tensor", "another", "x.coalesce(), or x._values()")
        return self

    def crow_indices(self) -> Tensor:
        """Where each row begins among the elements of a matrix in sparse_csr: [n + 1], int64."""
        return self._starts("crow_indices", sparse_csr)

    def col_indices(self) -> Tensor:
        """The columns of the elements of a matrix in sparse_csr: [k], int64."""
        self._need("col_indices", sparse_csr)
        return self._indices_held[1]

    def ccol_indices(self) -> Tensor:
        """Where each column begins among the elements of a matrix in sparse_csc: [n + 1], int64."""
        return self._starts("ccol_indices", sparse_csc)

    def row_indices(self) -> Tensor:
        """The rows of the elements of a matrix in sparse_csc: [k], int64."""
        self._need("row_indices", sparse_csc)
        return self._indices_held[0]

    def _starts(self, name: str, layout: str) -> Tensor:
        self._need(name, layout)
        axis = COMPRESSED[layout]
        counts = np.bincount(self._indices_held[axis].numpy(force=True), minlength=self.shape[axis])
        ends = Tensor(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
        return ends.to(self.device)

    def _need(self, name: str, layout: str) -> None:
        if self.layout != layout:
            wanted = layout.removeprefix("torch.")
            raise StateError(f"SparseTensor.{name}", f"the layout {wanted}", self.layout, f"x.to_{wanted}()")

    def coalesce(self) -> SparseTensor:
        """With the sum of the elements of each index, in order of the indices. The tensor itself if it is so."""
        if self._is_coalesced:
            return self
        if not self._nnz():
            return SparseTensor(self._indices_held, self._held, self.shape, self.layout, True)
        rows = self._indices_held.numpy(force=True)
        flat = np.ravel_multi_index(tuple(rows), tuple(self.shape))
        kept, place = np.unique(flat, return_inverse=True)
        indices = np.stack(np.unravel_index(kept, tuple(self.shape))).astype(np.int64)
        sums = zeros(len(kept), dtype=self.dtype, device=self.device)
        values = index_add(sums, 0, Tensor(place.reshape(-1).astype(np.int64)).to(self.device), self._held)
        return SparseTensor(Tensor(indices).to(self.device), values, self.shape, self.layout, True)

    def to_dense(self) -> Tensor:
        """All elements, in a Tensor."""
        found = zeros(tuple(self.shape), dtype=self.dtype, device=self.device)
        return index_put(found, tuple(self._indices_held.unbind(0)), self._held, accumulate=True)

    def to_sparse(self, layout: str | None = None) -> SparseTensor:
        """In a layout, by default sparse_coo."""
        if layout in (None, sparse_coo):
            return self.to_sparse_coo()
        if layout not in COMPRESSED:
            raise ArgumentError("to_sparse", f"layout {sparse_coo}, {sparse_csr} or {sparse_csc}", repr(layout))
        return self.to_sparse_csr() if layout == sparse_csr else self.to_sparse_csc()

    def to_sparse_coo(self) -> SparseTensor:
        """In the layout sparse_coo."""
        in_order = self._is_coalesced and self.layout != sparse_csc
        return SparseTensor(self._indices_held, self._held, self.shape, sparse_coo, in_order)

    def to_sparse_csr(self) -> SparseTensor:
        """A matrix in the layout sparse_csr."""
        if self.ndim != 2:
            raise ShapeError("to_sparse_csr", "a matrix", f"shape {tuple(self.shape)}")
        found = self.to_sparse_coo().coalesce()
        return SparseTensor(found._indices_held, found._held, self.shape, sparse_csr, True)

    def to_sparse_csc(self) -> SparseTensor:
        """A matrix in the layout sparse_csc."""
        if self.ndim != 2:
            raise ShapeError("to_sparse_csc", "a matrix", f"shape {tuple(self.shape)}")
        return self if self.layout == sparse_csc else self.t().to_sparse_csr().t()

    def transpose(self, dim0: int, dim1: int) -> SparseTensor:
        """With two axes exchanged; of a matrix in sparse_csr in sparse_csc, and the reverse."""
        order = list(range(self.ndim))
        a, b = (normalize_axis("transpose", d, self.ndim) for d in (dim0, dim1))
        order[a], order[b] = order[b], order[a]
        indices = stack([self._indices_held[d] for d in order])
        exchanged = {sparse_csr: sparse_csc, sparse_csc: sparse_csr}
        layout = self.layout if a == b else exchanged.get(self.layout, sparse_coo)
        return SparseTensor(indices, self._held, [self.shape[d] for d in order], layout, layout != sparse_coo)

    def t(self) -> SparseTensor:
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ShapeError("t", "a matrix", f"shape {tuple(self.shape)}")
        return self.transpose(0, 1)

    def to(self, *args: Any, **kwargs: Any) -> SparseTensor:
        """In another dtype, or on another device: `Tensor.to`."""
        values = self._held.to(*args, **kwargs)
        return SparseTensor(self._indices_held.to(values.device), values, self.shape, self.layout, self._is_coalesced)

    def cpu(self) -> SparseTensor:
        """On the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> SparseTensor:
        """On a GPU."""
        return self.to("cuda" if device is None else device)

    def detach(self) -> SparseTensor:
        """Off the tape."""
        return self._with(self._held.detach())

    def clone(self) -> SparseTensor:
        """A copy."""
        return self._with(self._held.clone())

    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        """Let gradients reach the values. -> self."""
        self._held.requires_grad_(requires_grad)
        return self

    def sum(self, dim: Any = None) -> Any:
        """The sum of all elements, or over an axis, which stays sparse."""
        if dim is None:
            return self._held.sum()
        gone = {normalize_axis("sum", d, self.ndim) for d in (dim if isinstance(dim, (tuple, list)) else [dim])}
        kept = [d for d in range(self.ndim) if d not in gone]
        if not kept:
            return self._held.sum()
        indices = stack([self._indices_held[d] for d in kept])
        return SparseTensor(indices, self._held, [self.shape[d] for d in kept]).coalesce()

    def mm(self, mat2: Any) -> Tensor:
        """`sparse.mm`."""
        return mm(self, mat2)

    matmul = mv = __matmul__ = mm

    def mul(self, other: Any) -> SparseTensor:
        """`self * other`."""
        return mul(self, other)

    multiply = __mul__ = __rmul__ = mul

    def add(self, other: Any, *, alpha: Any = 1) -> Any:
        """self + alpha * other."""
        return add(self, other, alpha=alpha)

    def sub(self, other: Any, *, alpha: Any = 1) -> Any:
        """self - alpha * other."""
        return add(self, other, alpha=-alpha)

    def div(self, other: Any) -> SparseTensor:
        """`self / other`."""
        return self._with(self._held / _scalar("div", other))

    __truediv__ = div

    def __rmatmul__(self, other: Tensor) -> Tensor:
        return mm(other, self)

    __add__ = __radd__ = add

    def __sub__(self, other: Any) -> Any:
        return add(self, -other)

    def __neg__(self) -> SparseTensor:
        return self._with(-self._held)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        where = f"size={tuple(self.shape)}, nnz={self._nnz()}, layout={self.layout}{grad}"
        return f"SparseTensor(indices={self._indices_held!r},\nvalues={self._held.detach()!r}, {where})"


def _cast(dtype: str) -> Callable[[SparseTensor], SparseTensor]:
    def cast(self: SparseTensor) -> SparseTensor:
        return self.to(dtype)

    cast.__doc__ = f"In {dtype}."
    return cast


for _name, _dtype in {"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16"}.items():
    setattr(SparseTensor, _name, _cast(_dtype))


check_methods(SparseTensor)


def _scalar(where: str, other: Any) -> Any:
    if isinstance(other, SparseTensor) or bool(getattr(other, "ndim", 0)):
        raise DTypeError(where, "a number beside a sparse tensor", f"a {type(other).__name__}", "x.to_dense()")
    return other


def mm(input: Any, mat2: Any) -> Tensor:
    """The product of a sparse matrix [n, M] and a dense one [M, K] or vector [M], or of a dense one and a sparse one.

    Dense, [n, K] or [n]. In the category of `matmul` under a policy: 16-bit operands, products and sums in float32.
    Raises DTypeError for two sparse matrices, ShapeError for shapes that do not fit.
    """
    if isinstance(mat2, SparseTensor):
        if isinstance(input, SparseTensor):
            raise DTypeError("sparse.mm", "one dense matrix", "two sparse ones", "y.to_dense()")
        if input.ndim == 1:
            return mm(mat2.t(), input)
        return transpose(mm(mat2.t(), transpose(input, -1, -2)), -1, -2)
    if not isinstance(mat2, Tensor):
        raise DTypeError("sparse.mm", "a Tensor", type(mat2).__name__)
    if input.ndim != 2 or mat2.ndim not in (1, 2) or mat2.shape[0] != input.shape[1]:
        got = f"{tuple(input.shape)} and {tuple(mat2.shape)}"
        raise ShapeError("sparse.mm", "matrices [n, M] and [M, K], or [M]", got)
    dense = mat2 if mat2.ndim == 2 else mat2.unsqueeze(-1)
    row, column = input._indices_held[0], input._indices_held[1]
    found = sparse_mm(input._held, dense, row, column, *input.shape)
    return found if mat2.ndim == 2 else found.squeeze(-1)


def add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """input + alpha * other: sparse of two sparse tensors, dense of a sparse and a dense one."""
    if isinstance(input, SparseTensor) and isinstance(other, SparseTensor):
        if input.shape != other.shape:
            raise ShapeError("add", "sparse tensors of one shape", f"{input.shape} and {other.shape}")
        values = cat([input._held, other._held if alpha == 1 else other._held * alpha])
        found = SparseTensor(cat([input._indices_held, other._indices_held], 1), values, input.shape)
        return found.to_sparse(input.layout if input.layout == other.layout else None)
    left, right = (x.to_dense() if isinstance(x, SparseTensor) else x for x in (input, other))
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
        raise DTypeError("add", "a tensor beside a sparse one", "a number", "x.to_dense() + number")
    return left + (right if alpha == 1 else right * alpha)


def mul(input: Any, other: Any) -> SparseTensor:
    """The product with a number, or element by element with a tensor of the same shape, dense or sparse: sparse."""
    if isinstance(other, SparseTensor):
        if isinstance(input, SparseTensor):
            from .selection import intersection

            return intersection(input, other)
        input, other = other, input
    if isinstance(other, Tensor) and other.ndim:
        if other.shape != input.shape:
            raise ShapeError("mul", f"a dense tensor of shape {tuple(input.shape)}", f"{tuple(other.shape)}")
        return input._with(input._held * getitem(other, tuple(input._indices_held.unbind(0))))
    return input._with(input._held * _scalar("mul", other))


def _of_values(name: str) -> Callable[..., Any]:
    # A function that is 0 at 0.
    def apply(input: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        found = input.coalesce()
        return found._with(getattr(found._held, name)(*args, **kwargs))

    return apply


# By the name of an op or function, what it does where an operand is sparse.
HANDLERS: dict[str, Callable[..., Any]] = {
    "mm": mm, "matmul": mm, "spmm": mm, "mv": mm, "add": add, "mul": mul, "multiply": mul,
    "sub": lambda input, other, *, alpha=1: add(input, other, alpha=-alpha),
    "div": lambda input, other: input / other, "transpose": SparseTensor.transpose, "t": SparseTensor.t,
    "sum": lambda input, dim=None: input.sum(dim), "clone": SparseTensor.clone, "detach": SparseTensor.detach,
    "to_dense": SparseTensor.to_dense, "to": SparseTensor.to, "numel": SparseTensor.numel,
    "is_floating_point": lambda input: input._held.is_floating_point(),
}  # fmt: skip
for _name in (
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "expm1", "floor", "log1p", "neg", "relu", "round", "sign", "sin",
    "sinh", "sqrt", "square", "tan", "tanh", "trunc",
):  # fmt: skip
    HANDLERS[_name] = _of_values(_name)
    setattr(SparseTensor, _name, HANDLERS[_name])
