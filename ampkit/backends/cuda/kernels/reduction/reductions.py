"""CUDA kernels of sum, mean, amax, amin, prod, any, all and count_nonzero, by `launch.reduction`."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit import backends
from ampkit.backends.cuda.launch import elementwise
from ampkit.backends.cuda.launch.reduction import Finish, axes_of, reduced
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED
from ampkit.base.dtypes import Array, DType, bool_, float32, int64
from ampkit.core.autograd.accumulate import sum_over
from ampkit.core.autograd.saved import Saved
from ampkit.ops.reduction import reductions as ops

EXACT = 2**24  # the largest count that a float32 sum of ones reaches exactly


def _float(input: Array, *args: Any, **params: Any) -> bool:
    return input.dtype in STORED and 0 < input.size <= MAX_ELEMENTS


def _count(shape: tuple[int, ...], dim: Any) -> int:
    """How many elements are reduced to one."""
    return prod(shape[i] for i in axes_of(dim, len(shape)))


@ops.sum.on("cuda", when=_float)
def sum_cuda(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    return reduced("Add", input, dim, keepdim, dtype), Saved(shape=input.shape)


@ops.mean.on("cuda", when=_float)
def mean_cuda(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    finish = Finish(_count(input.shape, dim))
    return reduced("Add", input, dim, keepdim, dtype, finish), Saved(shape=input.shape)


@ops.amax.on("cuda", when=_float)  # type: ignore[untyped-decorator]  # an overloaded op
def amax_cuda(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    found = reduced("Maximum", input, dim, keepdim, dtype)
    return found, Saved(input=input, out=found)


@ops.amin.on("cuda", when=_float)  # type: ignore[untyped-decorator]  # an overloaded op
def amin_cuda(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    found = reduced("Minimum", input, dim, keepdim, dtype)
    return found, Saved(input=input, out=found)


@ops.prod.on("cuda", when=lambda input, *args, **params: input.dtype in STORED)
def prod_cuda(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    return reduced("Prod", input, dim, keepdim, dtype), Saved(input=input)


# any, all, count_nonzero


def _known(input: Array, dim: Any, *args: Any, **params: Any) -> bool:
    return dim not in ((), []) and input.dtype in {*STORED, bool_} and 0 < input.size <= MAX_ELEMENTS


def _logical(op: Any, kind: str, compare: str) -> None:
    """Register a kernel that compares the count `kind` of elements over `dim` with 0 by `compare`."""

    def kernel(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
        return elementwise.forward(compare, (reduced(kind, input, dim, keepdim, float32), 0.0), bool_)

    kernel.__name__ = f"{op.name}_cuda"
    op.on("cuda", when=_known)(kernel)


_logical(ops.any, "CountNonzero", "NotEqual")
_logical(ops.all, "CountZero", "Equal")


@ops.count_nonzero.on("cuda", when=lambda input, dim: _known(input, dim) and _count(input.shape, dim) <= EXACT)
def count_nonzero_cuda(input: Array, dim: Any, *, dtype: DType) -> Any:
    return backends.backend_of(input).cast(reduced("CountNonzero", input, dim, False, float32), int64)


@sum_over.on("cuda", when=_float)
def sum_over_cuda(gradient: Array, axes: tuple[int, ...]) -> Any:
    return reduced("Add", gradient, axes, True, float32)
