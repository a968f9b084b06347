"""SparseTensor: a tensor that stores some of its elements, with their indices; the others are 0."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ampkit.base.memory_format import sparse_coo, sparse_csc, sparse_csr
from ampkit.base.missing_names import MissingNameError, missing_attribute
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_base import Shape

from ..argument_checks import check_methods, normalize_axis
from ..creation.constants import zeros
from ..indexing.index_select import index_add, index_put
from ..shape.join_split import stack
from ..shape.view import transpose

__all__: list[str] = []  # `ampkit.sparse` has the class

COMPRESSED = {sparse_csr: 0, sparse_csc: 1}  # by layout, the axis by which elements are ordered


class SparseTensor:
    """Elements `values` [k, ...] at `indices` [d, k], in one of three layouts: of d sparse axes, then those of values.

    values are an ordinary tensor: gradients flow to it, and to the dense operand of a product. In sparse_coo elements
    of equal indices are added; `coalesce` stores their sums. sparse_csr and sparse_csc are for matrices of numbers,
    ordered by rows and by columns. Under a policy the product with a dense matrix is in the category of `matmul`; the
    others are those of their dense op.
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

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(Tensor, name):
            raise MissingNameError(f"SparseTensor has no {name}", cure=f"x.to_dense().{name}")
        raise missing_attribute("torch.Tensor", self, name)

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
        """The number of axes that indices have, the first ones."""
        return self._indices_held.shape[0]

    def dense_dim(self) -> int:
        """The number of axes that each stored element has, the last ones."""
        return self._held.ndim - 1

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

    def _coalesced_(self, coalesced: bool) -> SparseTensor:
        self._is_coalesced = coalesced
        return self

    def coalesce(self) -> SparseTensor:
        """With the sum of the elements of each index, in order of the indices. The tensor itself if it is so."""
        if self._is_coalesced:
            return self
        if not self._nnz():
            return SparseTensor(self._indices_held, self._held, self.shape, self.layout, True)
        rows = self._indices_held.numpy(force=True)
        _, first, place = np.unique(flat_places(rows, self.shape), return_index=True, return_inverse=True)
        counted = self._held.to("int64") if self.dtype == "bool" else self._held
        sums = zeros((len(first), *self._held.shape[1:]), dtype=counted.dtype, device=self.device)
        values = index_add(sums, 0, Tensor(place.reshape(-1).astype(np.int64)).to(self.device), counted)
        indices = Tensor(np.ascontiguousarray(rows[:, first])).to(self.device)
        return SparseTensor(indices, values.to(self.dtype), self.shape, self.layout, True)

    def to_dense(self, dtype: Any = None, *, masked_grad: Any = None) -> Tensor:
        """All elements, in a Tensor. Gradients are those of the stored elements, whatever masked_grad says."""
        if not self.sparse_dim():
            return self.coalesce()._held.sum(0, dtype=self.dtype if dtype is None else dtype)
        source = self.coalesce() if self.dtype == "bool" else self
        held = source._held if dtype is None else source._held.to(dtype)
        found = zeros(tuple(self.shape), dtype=held.dtype, device=self.device)
        return index_put(found, tuple(source._indices_held.unbind(0)), held, accumulate=self.dtype != "bool")

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
        if self.ndim != 2 or self.dense_dim():
            raise ShapeError("to_sparse_csr", "a matrix of numbers", f"shape {tuple(self.shape)}")
        found = self.to_sparse_coo().coalesce()
        return SparseTensor(found._indices_held, found._held, self.shape, sparse_csr, True)

    def to_sparse_csc(self) -> SparseTensor:
        """A matrix in the layout sparse_csc."""
        if self.ndim != 2 or self.dense_dim():
            raise ShapeError("to_sparse_csc", "a matrix of numbers", f"shape {tuple(self.shape)}")
        return self if self.layout == sparse_csc else self.t().to_sparse_csr().t()

    def transpose(self, dim0: int, dim1: int) -> SparseTensor:
        """With two axes exchanged; of a matrix in sparse_csr in sparse_csc, and the reverse."""
        order, sparse = list(range(self.ndim)), self.sparse_dim()
        a, b = (normalize_axis("transpose", d, self.ndim) for d in (dim0, dim1))
        order[a], order[b] = order[b], order[a]
        shape = [self.shape[d] for d in order]
        if a >= sparse and b >= sparse:
            return self._with(transpose(self._held, a - sparse + 1, b - sparse + 1), shape)
        if a >= sparse or b >= sparse:
            raise ShapeError("transpose", f"two of the {sparse} sparse axes, or of the others", f"{dim0} and {dim1}")
        indices = stack([self._indices_held[d] for d in order[:sparse]])
        exchanged = {sparse_csr: sparse_csc, sparse_csc: sparse_csr}
        layout = self.layout if a == b else exchanged.get(self.layout, sparse_coo)
        in_order = layout != sparse_coo or (self._is_coalesced and not self._nnz())
        return SparseTensor(indices, self._held, shape, layout, in_order)

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
        """The sum of all elements, or over axes: sparse, dense where all sparse axes are among them."""
        if dim is None:
            return self._held.sum()
        gone = {normalize_axis("sum", d, self.ndim) for d in (dim if isinstance(dim, (tuple, list)) else [dim])}
        kept, sparse = [d for d in range(self.ndim) if d not in gone], self.sparse_dim()
        within = [d - sparse + 1 for d in sorted(gone) if d >= sparse]
        values = self._held.sum(within) if within else self._held
        places = [self._indices_held[d] for d in kept if d < sparse]
        if not places:
            return values.sum(0)
        return SparseTensor(stack(places), values, [self.shape[d] for d in kept]).coalesce()

    def mm(self, mat2: Any) -> Any:
        """`sparse.mm`."""
        return HANDLERS["mm"](self, mat2)

    matmul = __matmul__ = mm

    def mv(self, vec: Tensor) -> Tensor:
        """The product with a vector."""
        return HANDLERS["mv"](self, vec)

    def __rmatmul__(self, other: Tensor) -> Any:
        return HANDLERS["mm"](other, self)

    def mul(self, other: Any) -> SparseTensor:
        """`self * other`."""
        return HANDLERS["mul"](self, other)

    multiply = __mul__ = __rmul__ = mul

    def add(self, other: Any, *, alpha: Any = 1) -> Any:
        """self + alpha * other."""
        return HANDLERS["add"](self, other, alpha=alpha)

    __add__ = __radd__ = add

    def sub(self, other: Any, *, alpha: Any = 1) -> Any:
        """self - alpha * other."""
        return HANDLERS["sub"](self, other, alpha=alpha)

    def __sub__(self, other: Any) -> Any:
        return HANDLERS["sub"](self, other)

    def div(self, other: Any) -> SparseTensor:
        """`self / other`."""
        return HANDLERS["div"](self, other)

    __truediv__ = div

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


def flat_places(indices: Any, shape: Any) -> Any:
    """One number for each column of `indices` [d, k] of a tensor whose first d axes are those of `shape`: [k] int64."""
    found = np.zeros(indices.shape[1], np.int64)
    for row, n in zip(indices, shape, strict=False):
        found = found * n + row
    return found


def _of_values(name: str) -> Callable[..., Any]:
    # A function that is 0 at 0.
    def apply(input: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        found = input.coalesce()
        return found._with(getattr(found._held, name)(*args, **kwargs))

    return apply


# By the name of an op or function, what it does where an operand is sparse; arithmetic.py adds its own.
HANDLERS: dict[str, Callable[..., Any]] = {
    "transpose": SparseTensor.transpose, "t": SparseTensor.t, "sum": lambda input, dim=None: input.sum(dim),
    "clone": SparseTensor.clone, "detach": SparseTensor.detach, "to_dense": SparseTensor.to_dense,
    "to": SparseTensor.to, "numel": SparseTensor.numel,
    "is_floating_point": lambda input: input._held.is_floating_point(),
}  # fmt: skip
for _name in (
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "expm1", "floor", "log1p", "neg", "relu", "round", "sign", "sin",
    "sinh", "sqrt", "square", "tan", "tanh", "trunc",
):  # fmt: skip
    HANDLERS[_name] = _of_values(_name)
    setattr(SparseTensor, _name, HANDLERS[_name])
