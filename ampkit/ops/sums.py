"""Sums of products, as the references of norms, softmax and losses need them: on plain arrays in one pass, without a
temporary; on taped ones by their definition.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core.errors import ArgumentError
from ..core.primitive import Primitive


def dot_last(a: Any, b: Any) -> Any:
    """Sum of a * b over the last axis: [..., n], [..., n] -> [..., 1]."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.einsum("...i,...i->...", a, b)[..., None]
    return (a * b).sum(-1, keepdims=True)  # CuPy's einsum may be a product of cuBLAS, which cannot be recorded


def dot_along(a: Any, b: Any, axis: int) -> Any:
    """Sum of a * b over `axis`, which stays with length 1."""
    if not a.ndim:
        return a * b
    return dot_last(a, b) if axis in (-1, a.ndim - 1) else (a * b).sum(axis, keepdims=True)


def _times(a: Any, b: Any, out: Any = None) -> Any:
    return a @ b if out is None else np.matmul(a, b, out=out)


times = Primitive("times", "sums", _times)  # (a [..., M, K], b [..., K, N], out or None): the product of float arrays


def channels(array: Any) -> Any:
    """[N, C, ...] -> [N, C, S]."""
    return array.reshape(*array.shape[:2], math.prod(array.shape[2:]))


def dot_channels(a: Any, b: Any) -> Any:
    """Sum of a * b over all but the channels: [N, C, S], [N, C, S] -> [C, 1]."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.einsum("ncs,ncs->c", a, b)[:, None]
    return (a * b).sum((0, 2)).reshape(-1, 1)


def sum_channels(a: Any) -> Any:
    """Sum over all but the channels: [N, C, S] -> [C, 1]."""
    if not isinstance(a, np.ndarray):
        return a.sum((0, 2)).reshape(-1, 1)
    batch, channels, size = a.shape
    rows = a.reshape(batch * channels, size) @ np.ones(size, a.dtype)  # a product outruns sums of short rows
    return rows.reshape(batch, channels).sum(0)[:, None]


REDUCTIONS = ("none", "mean", "sum")


def check_reduction(where: str, reduction: Any, allowed: tuple[str, ...] = REDUCTIONS) -> None:
    """Raise ArgumentError unless `reduction` is one of `allowed`."""
    if reduction not in allowed:
        raise ArgumentError(where, f"reduction {', '.join(map(repr, allowed))}", repr(reduction))
