"""CUDA kernels of prod and of sums over broadcast axes, by `launch.reduction`."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch.reduction import Finish, reduced
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED
from ampkit.base.dtypes import Array, DType, bool_, float32
from ampkit.core.autograd.accumulate import sum_over
from ampkit.core.autograd.saved import Saved
from ampkit.ops.reduction import reductions as ops


def fits(input: Array, *args: Any, **params: Any) -> bool:
    """Whether the kernels read an array of floating-point numbers."""
    return input.dtype in STORED and 0 < input.size <= MAX_ELEMENTS


def fits_bool(input: Array) -> bool:
    """Whether the kernels of counts read an array."""
    return input.dtype in {*STORED, bool_} and 0 < input.size <= MAX_ELEMENTS


def reduced_with_axes(
    term: str, x: Array, axes: tuple[int, ...], dtype: DType, divisor: float = 1.0, root: bool = False,
    center: Array | None = None,
) -> Array:  # fmt: skip
    """`launch.reduction.reduced`, as the kernels of reductions call it."""
    return reduced(term, x, axes, True, dtype, Finish(divisor, root), center)


@ops.prod.on("cuda", when=lambda input, *args, **params: input.dtype in STORED)
def prod_cuda(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    return reduced("Multiply", input, dim, keepdim, dtype), Saved(input=input)


@sum_over.on("cuda", when=fits)
def sum_over_cuda(gradient: Array, axes: tuple[int, ...]) -> Any:
    return reduced("Add", gradient, axes, True, float32)
