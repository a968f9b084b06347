"""CUDA kernels of variance and standard deviation, by `launch.reduction`."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch.reduction import Finish, reduced
from ampkit.base.dtypes import Array, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.reduction.statistics import std_, var_

from .reductions import _count, _float


def _supports(input: Array, dim: Any, keepdim: bool, correction: float) -> bool:
    return _float(input) and _count(input.shape, dim) > correction


def _variance(input: Array, dim: Any, keepdim: bool, correction: float, dtype: DType, root: bool) -> Any:
    """Two passes in float32: the mean, then the sum of squared differences from it; root: the standard deviation."""
    count = _count(input.shape, dim)
    means = reduced("Add", input, dim, False, float32, Finish(count))
    return reduced("AddSquaredDifferences", input, dim, keepdim, dtype, Finish(count - correction, root), means)


@var_.on("cuda", when=_supports)
def var_cuda(input: Array, dim: Any, keepdim: bool, correction: float, *, dtype: DType) -> Any:
    return _variance(input, dim, keepdim, correction, dtype, root=False), Saved(input=input)


@std_.on("cuda", when=_supports)
def std_cuda(input: Array, dim: Any, keepdim: bool, correction: float, *, dtype: DType) -> Any:
    result = _variance(input, dim, keepdim, correction, dtype, root=True)
    return result, Saved(input=input, out=result)
