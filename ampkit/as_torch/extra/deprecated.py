"""Functions of `torch` that PyTorch has deprecated and still has, by what has taken their place."""

from __future__ import annotations

from typing import Any, NamedTuple

from ... import linalg, ops, special
from ...base.errors import ArgumentError
from ...core.tensor import Tensor

__all__ = [
    "cholesky", "frobenius_norm", "igamma", "igammac", "lu", "mvlgamma", "nuclear_norm", "qr", "range",
    "split_with_sizes", "svd",
]  # fmt: skip

igamma, igammac, mvlgamma = special.gammainc, special.gammaincc, special.multigammaln


class SVD(NamedTuple):
    """`torch.svd`: V is not transposed, as Vh of linalg.svd is."""

    U: Tensor
    S: Tensor
    V: Tensor


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> SVD:
    """input = U diag(S) V^T; some=False: square U and V; compute_uv=False: zeros of their square shapes."""
    if not compute_uv:
        *batch, n, m = input.shape
        empty = [ops.zeros(*batch, k, k, dtype=input.dtype, device=input.device) for k in (n, m)]
        return SVD(empty[0], linalg.svdvals(input), empty[1])
    found = linalg.svd(input, full_matrices=not some)
    return SVD(found[0], found[1], found[2].transpose(-2, -1))


def qr(input: Tensor, some: bool = True) -> Any:
    """linalg.qr; some=False: in mode "complete"."""
    return linalg.qr(input, "reduced" if some else "complete")


def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """linalg.cholesky."""
    return linalg.cholesky(input, upper=upper)


def lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:  # noqa: N803
    """linalg.lu_factor, with get_infos linalg.lu_factor_ex."""
    return linalg.lu_factor_ex(A, pivot=pivot) if get_infos else linalg.lu_factor(A, pivot=pivot)


def frobenius_norm(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """The square root of the sum of squares along `dim`."""
    return linalg.vector_norm(input, 2, dim, keepdim)


def nuclear_norm(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The sum of the singular values of the matrices along two axes, by default of a matrix."""
    dim, keepdim = ((-2, -1), dim) if isinstance(dim, bool) else (dim, keepdim)
    return linalg.matrix_norm(input, "nuc", (-2, -1) if dim is None else tuple(dim), keepdim)


def range(
    start: float, end: float, step: float = 1, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """start, start + step, ..., up to `end`, which belongs to them; in the default dtype.

    Raises ArgumentError for a step of 0 or away from the end.
    """
    if not step or (end - start) / step < 0:
        raise ArgumentError("range", "a step from start towards end", f"{start}, {end} and step {step}")
    count = int((end - start) / step) + 1
    wanted = ops.get_default_dtype() if dtype is None else dtype
    found = ops.arange(count, dtype="float64", device=device) * step + start
    return found.to(wanted).requires_grad_(requires_grad)


def split_with_sizes(input: Tensor, split_sizes: Any, dim: int = 0) -> Any:
    """`split` into parts of these lengths."""
    return ops.split(input, list(split_sizes), dim)
