"""Sums of products for the references of norms, softmax and losses.

On NumPy arrays in one pass without a temporary, on traced arrays by definition.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.core.blocked_sum import BLOCK, blocked_sum
from ampkit.core.dispatch import primitive

_EINSUM_RUN = 1024  # products per einsum call: its vectorized sum is accurate up to this length


def dot_last(a: Any, b: Any) -> Any:
    """Sum of a * b over the last axis: [..., n], [..., n] -> [..., 1]. Blocked, as `blocked_sum` is."""
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return blocked_sum(a * b, -1, True)  # CuPy's einsum may call cuBLAS, which cannot be captured in a CUDA graph
    n = a.shape[-1]
    if n <= 2 * _EINSUM_RUN:
        return np.einsum("...i,...i->...", a, b)[..., None]
    whole = n - n % _EINSUM_RUN
    runs = [x[..., :whole].reshape(*x.shape[:-1], -1, _EINSUM_RUN) for x in (a, b)]
    total = blocked_sum(np.einsum("...i,...i->...", *runs), -1, True)
    return total if whole == n else total + dot_last(a[..., whole:], b[..., whole:])


def dot_along(a: Any, b: Any, axis: int) -> Any:
    """Sum of a * b over `axis`, with keepdims."""
    if not a.ndim:
        return a * b
    return dot_last(a, b) if axis in (-1, a.ndim - 1) else blocked_sum(a * b, axis, True)


@primitive("reduction.dot_products")
def matmul_arrays(a: Any, b: Any, out: Any = None) -> Any:
    """The product of float arrays a [..., M, K] and b [..., K, N]."""
    return a @ b if out is None else np.matmul(a, b, out=out)


def flatten_spatial(array: Any) -> Any:
    """[N, C, ...] -> [N, C, S]."""
    return array.reshape(*array.shape[:2], math.prod(array.shape[2:]))


def dot_channels(a: Any, b: Any) -> Any:
    """Sum of a * b over all but the channels: [N, C, S], [N, C, S] -> [C, 1]. Blocked, as `blocked_sum` is."""
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return blocked_sum(a * b, (0, 2)).reshape(-1, 1)
    if a.shape[2] > BLOCK:
        return blocked_sum(dot_last(a, b)[..., 0], 0)[:, None]
    rows = a.shape[0], a.shape[1] * a.shape[2]
    return _sum_positions(_dot_rows(a.reshape(rows), b.reshape(rows)), a.shape)


def _dot_rows(a: Any, b: Any) -> Any:
    # Sum of a * b over the rows: [N, K], [N, K] -> [K].
    count = len(a) // BLOCK
    whole = count * BLOCK
    blocks = [x[:whole].reshape(count, BLOCK, x.shape[1]) for x in (a, b)]
    rest = np.einsum("nk,nk->k", a[whole:], b[whole:])
    return blocked_sum(np.einsum("bnk,bnk->bk", *blocks), 0) + rest


def _sum_positions(sums: Any, shape: tuple[int, ...]) -> Any:
    # Sums over the samples [C * S] -> [C, 1].
    return sums.reshape(shape[1], shape[2]).sum(1, keepdims=True)


def sum_channels(a: Any) -> Any:
    """Sum over all but the channels: [N, C, S] -> [C, 1]. Blocked, as `blocked_sum` is."""
    batch, channels, size = a.shape
    if not isinstance(a, np.ndarray) or size > _EINSUM_RUN:
        return blocked_sum(a, (0, 2)).reshape(-1, 1)
    if size <= BLOCK:
        return _sum_positions(blocked_sum(a.reshape(batch, channels * size), 0), a.shape)
    rows = a.reshape(batch * channels, size) @ np.ones(size, a.dtype)  # a GEMV is faster than sums of short rows
    return blocked_sum(rows.reshape(batch, channels), 0)[:, None]
