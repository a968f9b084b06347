"""Norms of vectors and matrices, and renorm. In float32, rounded once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError, StateError
from ampkit.core.autograd.traced_array import TracedArray, plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import normalize_axes, normalize_axis_of
from ..pointwise.sign_and_rounding import sign_of
from ..shape.view import movedim, reshape
from .reductions import amax, amin, expand_reduced, numpy_axis, sum
from .squares import norm_of_powers, root_sum_of_squares

__all__ = ["linalg_matrix_norm", "linalg_norm", "linalg_vector_norm", "norm", "renorm"]


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: CompatArg = None,
    dtype: Any = None,
) -> Tensor:
    """The vector norm over `dim`: (sum |x|^p)^(1/p); p = inf or -inf the extreme |x|, p = 0 the count of non-zeros.

    "fro" is 2, "nuc" the sum of the singular values of matrices. In float32. Where the norm is 0 its gradient is 0.
    Raises RangeError for an axis that input does not have.
    """
    if p == "nuc":
        return linalg_matrix_norm(input, "nuc", tuple(range(input.ndim)) if dim is None else dim, keepdim, dtype=dtype)
    return norm_(input, p, dim, keepdim, dtype=dtype)


@op(cast=Cast.FP32, integers="refuse")
def norm_(input: Array, p: float | str | None = "fro", dim=None, keepdim=False, *, dtype=None):
    """`norm` of vectors."""
    out = p_norm(input, _order(p), numpy_axis(dim, input.ndim), keepdim)
    return out, Saved(input=input, out=out)


@norm_.check
def norm_check(input, p, dim, keepdim, dtype):
    reduced = normalize_axes("norm", dim, input.ndim)
    if (_order(p) < 0 or math.isinf(_order(p))) and not math.prod(input.shape[i] for i in reduced):
        raise ShapeError("norm", "at least one element for this p", f"shape {tuple(input.shape)}")


def _order(p: Any) -> float:
    if isinstance(p, str) and p != "fro":
        raise DTypeError("norm", "p as a number, 'fro' or 'nuc'", repr(p))
    return 2.0 if isinstance(p, str) or p is None else float(p)


def p_norm(x: Any, p: float, axis: Any, keepdim: bool) -> Any:
    """The p-norm over `axis`, in NumPy's form."""
    if p == 2:
        return root_sum_of_squares(x, axis, keepdim)
    size = np.abs(x)
    if math.isinf(p):
        return (np.max if p > 0 else np.min)(size, axis, keepdims=keepdim)
    if p == 0:
        return (plain(size) != 0).sum(axis, keepdims=keepdim).astype(size.dtype)
    if p == 1:
        return blocked_sum(size, axis, keepdim)
    return norm_of_powers(
        size, lambda each: blocked_sum(each**p, axis, keepdim), lambda total: total ** (1 / p), axis, keepdim,
        order=p,
    )  # fmt: skip


def p_norm_grad(x: Any, size: Any, p: float, axis: Any) -> Any:
    """The derivative of `p_norm` by x; size: the norm with keepdim, broadcast to x. 0 where the norm is 0."""
    sign = sign_of(plain(x))
    if p in (0, 1):
        return sign * p
    if math.isinf(p):
        hit = np.abs(plain(x)) == p_norm(plain(x), p, axis, True)  # recomputed from x: `size` may have been rounded
        return sign * hit / np.maximum(hit.sum(axis, keepdims=True).astype(sign.dtype), 1)
    zero = plain(size) == 0
    safe = np.where(zero, 1, size)
    grad = x / safe if p == 2 else sign * (np.abs(x) / safe) ** (p - 1)
    return np.where(zero if p >= 1 else zero | (plain(x) == 0), 0, grad)


@norm_.backward
def norm_backward(dy, saved, needs, p, dim, keepdim, dtype):
    x = saved.input
    size, dy = expand_reduced(saved.out, x.shape, dim, keepdim), expand_reduced(dy, x.shape, dim, keepdim)
    return dy * p_norm_grad(x, size, _order(p), numpy_axis(dim, x.ndim))


def linalg_vector_norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The vector norm of order `ord` over `dim`: `norm` with the argument names of torch.linalg."""
    return norm_(x, ord, dim, keepdim, dtype=dtype)


# sums along rows or columns
_ROW_COLUMN_NORMS = {1: (0, amax), -1: (0, amin), math.inf: (1, amax), -math.inf: (1, amin)}
_SINGULAR_VALUE_NORMS = ("nuc", 2, -2)


def linalg_matrix_norm(
    A: Tensor,  # noqa: N803 - PyTorch's name
    ord: float | str = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    """The norm of the matrices in the axes `dim`: [.., M, N] -> [..].

    ord: "fro" the root of the sum of squares; 1, -1 the largest and smallest absolute column sum, inf, -inf row sum;
    "nuc" the sum of the singular values, 2, -2 the largest and smallest. Of an empty matrix the largest is 0.
    Raises ArgumentError for another ord, ShapeError unless dim has two axes, and for the smallest of an empty matrix.
    """
    pair = normalize_axes("linalg_matrix_norm", dim, A.ndim) if isinstance(dim, (tuple, list)) else ()
    if len(pair) != 2:
        raise ShapeError("linalg_matrix_norm", "two axes of a matrix as dim", f"{dim} of shape {tuple(A.shape)}")
    if not isinstance(ord, (str, int, float)):
        raise ArgumentError("linalg_matrix_norm", "ord 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2", repr(ord)[:60])
    if ord == "fro":
        return norm_(A, 2, pair, keepdim, dtype=dtype)
    if ord in _ROW_COLUMN_NORMS:
        at, extreme = _ROW_COLUMN_NORMS[ord]
        sums = norm_(A, 1, pair[at], True, dtype=dtype)
        none = extreme is amax and not sums.shape[pair[1 - at]]
        found = (sum if none else extreme)(sums, pair[1 - at], True)
    elif ord in _SINGULAR_VALUE_NORMS:
        found = singular_norm(movedim(A, pair, (-2, -1)), ord, dtype=dtype)
    else:
        raise ArgumentError("linalg_matrix_norm", "ord 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2", repr(ord))
    sizes = [1 if i in pair else n for i, n in enumerate(A.shape)]
    return reshape(found, [n for i, n in enumerate(sizes) if keepdim or i not in pair])


@op(cast=Cast.FP32, integers="refuse")
def singular_norm(input: Array, ord, *, dtype=None):
    """The matrix norms by singular values, [.., M, N] -> [..]; without second derivatives."""
    if isinstance(input, TracedArray):
        raise StateError("linalg_matrix_norm", "a first derivative", f"a second one for ord={ord!r}", "use ord='fro'")
    if type(input) is np.ndarray and not np.isfinite(input).all():  # LAPACK's iteration may not end
        raise NonFiniteError("linalg_matrix_norm", "a matrix of finite numbers", "inf or NaN")
    u, s, vh = np.linalg.svd(input, full_matrices=False)
    out = s.sum(-1) if ord == "nuc" or not s.shape[-1] else s.max(-1) if ord == 2 else s.min(-1)
    hit = np.ones_like(s) if ord == "nuc" else (s == out[..., None]).astype(s.dtype)
    share = hit if ord == "nuc" else hit / np.maximum(hit.sum(-1, keepdims=True), 1)
    return out, Saved(grad=(u * share[..., None, :]) @ vh)


@singular_norm.check
def singular_norm_check(input, ord, dtype):
    if ord == -2 and not min(input.shape[-2:]):
        raise ShapeError("linalg_matrix_norm", "at least one singular value", f"shape {tuple(input.shape)}")


@singular_norm.backward
def singular_norm_backward(dy, saved, needs, ord, dtype):
    return dy.reshape(*dy.shape, 1, 1) * saved.grad


def linalg_norm(
    A: Tensor,  # noqa: N803
    ord: float | str | None = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    """The norm of a vector or matrix: of all elements without ord and dim, of vectors for one dim, of matrices for two.

    With ord alone, A is a vector or a matrix. See `linalg_vector_norm` and `linalg_matrix_norm`.
    """
    if ord is None:
        return norm_(A, 2, dim, keepdim, dtype=dtype)
    if dim is None and A.ndim not in (1, 2):
        raise ShapeError("linalg_norm", "a vector or a matrix, or dim", f"shape {tuple(A.shape)}")
    over = dim if dim is not None else tuple(range(A.ndim))
    if isinstance(over, (tuple, list)) and len(over) == 2:
        return linalg_matrix_norm(A, ord, over, keepdim, dtype=dtype)
    return norm_(A, ord, over, keepdim, dtype=dtype)


@op(cast=Cast.FP32, integers="refuse")
def renorm(input: Array, p: float, dim: int, maxnorm: float):
    """input with each slice along `dim` whose p-norm exceeds maxnorm scaled down to maxnorm. In float32.

    Raises ShapeError for fewer than two axes, ArgumentError unless p and maxnorm are positive.
    """
    return input * _renorm_scale(input, p, dim, maxnorm)[0], Saved(input=input)


def _renorm_scale(x: Any, p: float, dim: int, maxnorm: float) -> tuple[Any, Any]:
    size = p_norm(x, p, _other_axes(x, dim), True) if x.size else x.sum(_other_axes(x, dim), keepdims=True)
    above = plain(size) > maxnorm
    return np.where(above, maxnorm / (size + 1e-7), 1), size  # the 1e-7 as in PyTorch


def _other_axes(x: Any, dim: int) -> tuple[int, ...]:
    return tuple([i for i in range(x.ndim) if i != dim % x.ndim])


@renorm.check
def renorm_check(input, p, dim, maxnorm):
    normalize_axis_of("renorm", input, dim)
    if input.ndim < 2:
        raise ShapeError("renorm", "at least two axes", f"shape {tuple(input.shape)}")
    if not p > 0 or not maxnorm >= 0:
        raise ArgumentError("renorm", "a positive p and a maxnorm from 0", f"p={p}, maxnorm={maxnorm}")


@renorm.backward
def renorm_backward(dy, saved, needs, p, dim, maxnorm):
    x = saved.input
    scale, size = _renorm_scale(x, p, dim, maxnorm)
    moved = blocked_sum(dy * x, _other_axes(x, dim), True) * -scale / (size + 1e-7)
    if not x.size:
        return dy
    return dy * scale + np.where(plain(size) > maxnorm, moved, 0) * p_norm_grad(x, size, p, _other_axes(x, dim))
