"""Kernels of variance and standard deviation, by the launches of reductions.cu. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch.reduction import Finish, reduced
from ampkit.base.dtypes import DType, float32
from ampkit.ops.reduction.statistics import std_, var_

from .reductions import _count, _float, _out

Array = Any


def _variance(input: Array, dim: Any, keepdim: bool, correction: float, dtype: DType, root: bool) -> Any:
    """In two passes: the means, and the squared distances to them."""
    count = _count(input.shape, dim)
    if count <= correction:
        return NotImplemented
    means = reduced("Add", input, dim, False, float32, Finish(count))
    if means is NotImplemented:
        return means
    return reduced("AddSquaredDifferences", input, dim, keepdim, dtype, Finish(count - correction, root), means)


@var_.on("cuda", when=_float)
def var_cuda(input: Array, dim: Any, keepdim: bool, correction: float, *, dtype: DType) -> Any:
    return _out(_variance(input, dim, keepdim, correction, dtype, root=False), input=input)


@std_.on("cuda", when=_float)
def std_cuda(input: Array, dim: Any, keepdim: bool, correction: float, *, dtype: DType) -> Any:
    found = _variance(input, dim, keepdim, correction, dtype, root=True)
    return _out(found, input=input, out=found)
