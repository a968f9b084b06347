"""CPU kernels of cdist for p = 2 (distances.cpp), and of cosine_similarity, made of kernels of other ops."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.copies import contiguous, reshaped
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import (
    MIN_ELEMENTS,
    MIN_FUSED,
    Function,
    HostArray,
    empty,
    reshape_view,
    supported,
)
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.linalg.distances import cdist, cosine_similarity, from_end

from ..pointwise import elementwise
from ..reduction import reductions

_FEW = 16  # rows
_distances, _backward = Function("distances", "aaa"), Function("distances_backward", "aaaaa")


def _fits(x1: HostArray, x2: HostArray, p: float) -> bool:
    return p == 2 and supported(x1, x2) and x1.shape[:-2] == x2.shape[:-2] and x1.size > 0 and x2.size > 0


def _batch(x: HostArray) -> HostArray:
    """`x` [.., n, m] as [a, n, m] in float32, contiguous."""
    return contiguous(in_format(x, float32)).reshape(prod(x.shape[:-2]), *x.shape[-2:])


@cdist.on("cpu", when=_fits, min_elements=MIN_FUSED)
def cdist_cpu(x1: HostArray, x2: HostArray, p: float, *, dtype: DType) -> Any:
    out = empty((*x1.shape[:-1], x2.shape[-2]), float32)
    left, right = map(_batch, (x1, x2))
    found = reshape_view(out, (len(left), left.shape[1], right.shape[1]))
    if right.shape[1] < _FEW <= left.shape[1]:  # the second rows are compared several at a time
        _distances(found.transpose(0, 2, 1), right, left)
    else:
        _distances(found, left, right)
    out = in_format(out, dtype)
    return out, Saved(x1=x1, x2=x2, out=out)


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, p: float) -> bool:
    return supported(dy, saved.out) and _fits(saved.x1, saved.x2, p)


@cdist.on_backward("cpu", when=_backward_fits)
def cdist_backward_cpu(dy: HostArray, saved: Saved, needs: Any, p: float) -> Any:
    left, right, out = map(_batch, (saved.x1, saved.x2, saved.out))
    grad = reshaped(in_format(dy, float32), out.shape)
    found: list[HostArray | None] = [None, None]
    for place, (x1, x2, axes) in enumerate(((left, right, (0, 1, 2)), (right, left, (0, 2, 1)))):
        if needs[place] is not None:
            dx = empty(x1.shape, float32)
            _backward(dx, x1, x2, grad.transpose(axes), out.transpose(axes))
            found[place] = in_format(dx, needs[place]).reshape((saved.x1, saved.x2)[place].shape)
    return tuple(found)


# cosine_similarity


def _vectors_fit(x1: HostArray, x2: HostArray, dim: Any, eps: Any) -> bool:
    if not (supported(x1, x2) and x1.size > 0 and x2.size > 0 and min(x1.ndim, x2.ndim) > 0):
        return False
    at = from_end(x1, x2, dim)
    return x1.shape[at] == x2.shape[at]


def _unit_vectors(x: HostArray, at: int, eps: float) -> tuple[HostArray, HostArray, HostArray]:
    """(x divided by its norm along `at`, that norm, at least eps, whether it exceeds eps)."""
    norm = reductions.reduced("AddSquares", x, (at % x.ndim,), float32, root=True)
    exceeds = norm > eps
    length = np.where(exceeds, norm, np.float32(eps))
    return elementwise.forward("Div", (x, length), float32), length, exceeds


def _cosine(a: HostArray, b: HostArray, at: int, dtype: DType = float32) -> HostArray:
    products = elementwise.forward("Mul", (a, b), float32)
    return reductions.reduced("Add", products, (at % products.ndim,), dtype)


@cosine_similarity.on("cpu", when=_vectors_fit, min_elements=MIN_ELEMENTS)
def cosine_similarity_cpu(x1: HostArray, x2: HostArray, dim: int, eps: float, *, dtype: DType) -> Any:
    at = from_end(x1, x2, dim)
    a, b = (_unit_vectors(x, at, eps)[0] for x in (x1, x2))
    return _cosine(a, b, at, dtype).squeeze(at), Saved(x1=x1, x2=x2, at=at)


def _vectors_back_fit(dy: HostArray, saved: Saved, needs: Any, dim: int, eps: float) -> bool:
    return supported(dy) and saved.x1.size >= MIN_ELEMENTS and _vectors_fit(saved.x1, saved.x2, dim, eps)


@cosine_similarity.on_backward("cpu", when=_vectors_back_fit)
def cosine_similarity_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: int, eps: float) -> Any:
    x1, x2, at = saved.x1, saved.x2, saved.at
    first, second = _unit_vectors(x1, at, eps), _unit_vectors(x2, at, eps)
    cosine = _cosine(first[0], second[0], at)
    share = in_format(dy, float32).reshape(cosine.shape)

    def gradient(own: Any, other: HostArray, x: HostArray, need: DType | None) -> HostArray | None:
        if need is None:
            return None
        unit, length, exceeds = own
        along = np.where(exceeds, cosine, np.float32(0))
        apart = elementwise.forward("AddCMul", (other, unit, along, -1.0), float32)
        return elementwise.forward("Mul", (apart, share / length), need if apart.shape == x.shape else float32)

    return gradient(first, second[0], x1, needs[0]), gradient(second, first[0], x2, needs[1])
