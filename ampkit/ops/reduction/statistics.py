"""Covariances and histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import DType, accumulator, float32, promote
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.policy import autocast
from ampkit.core.tensor import Tensor

from ..indexing.subscript import added_at
from ..linalg.matmul import matmul
from ..pointwise.arithmetic import div, mul, sub
from ..pointwise.conversion import to
from ..pointwise.selection import clamp
from ..pointwise.unary import sqrt
from ..shape.diagonals import diagonal
from ..shape.view import reshape, squeeze, transpose, unsqueeze
from .reductions import sum

__all__ = ["corrcoef", "cov", "histogram"]


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariances of variables: input [variables, observations] -> [variables, variables]; [observations] -> [].

    Sums of products are divided by the number of observations less `correction`. fweights [observations], whole
    numbers: how often each was seen; aweights [observations]: how much each counts. In float32, also in a region,
    rounded once; the answer is in the wider dtype of input and aweights.
    Raises ShapeError for more axes, for other weights and for too few observations, ArgumentError for negative weights.
    """
    if input.ndim > 2:
        raise ShapeError("cov", "input [variables, observations]", f"shape {tuple(input.shape)}")
    with autocast(enabled=False):
        found = squeeze(_covariances(input, correction, fweights, aweights))
        return to(found, _answer(input, aweights))


def corrcoef(input: Tensor) -> Tensor:
    """The correlations of variables: input [variables, observations] -> [variables, variables], between -1 and 1.

    In float32, also in a region, rounded once; NaN for a variable that never changes. Raises ShapeError for more than
    two axes and for fewer than two observations.
    """
    if input.ndim > 2:
        raise ShapeError("corrcoef", "input [variables, observations]", f"shape {tuple(input.shape)}")
    with autocast(enabled=False):
        found = _covariances(input, 1, None, None)
        size = sqrt(diagonal(found))
        found = div(div(found, unsqueeze(size, 1)), unsqueeze(size, 0))
        return to(squeeze(clamp(found, -1, 1)), _answer(input, None))


def _covariances(input: Tensor, correction: int, fweights: Tensor | None, aweights: Tensor | None) -> Tensor:
    wide = to(input, accumulator(_answer(input, aweights)))
    rows = wide if input.ndim == 2 else reshape(wide, (1, -1))
    count = rows.shape[1]
    weight = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        if given.shape != (count,) or (name == "fweights" and given.is_floating_point()):
            kind = "whole numbers" if name == "fweights" else "numbers"
            raise ShapeError("cov", f"{name} [{count}], {kind}", f"{given.dtype.name} {list(given.shape)}")
        _need_positive(name, given.array)
        weight = to(given, rows.dtype) if weight is None else mul(weight, to(given, rows.dtype))
    if weight is None and count <= correction:
        raise ShapeError("cov", f"more than {correction} observations", f"{count}")
    total: Any = count if weight is None else sum(weight)
    mean = div(sum(rows if weight is None else mul(rows, weight), 1, True), total)
    apart = sub(rows, mean)
    free: Any = total - correction
    if aweights is not None:
        free = sub(total, div(mul(sum(mul(weight, to(aweights, rows.dtype))), correction), total))
    return div(matmul(apart if weight is None else mul(apart, weight), transpose(apart, 0, 1)), free)


def _need_positive(name: str, weights: Any) -> None:
    def fail(value: Any, position: Any) -> None:
        raise ArgumentError("cov", f"{name} from 0", f"{value} at position {position}")

    backends.backend_of(weights).raise_if(weights, weights < 0, fail)


def _answer(input: Tensor, aweights: Tensor | None) -> DType:
    given = [t.dtype for t in (input, aweights) if t is not None and t.is_floating_point()]
    return promote(*given) if given else float32


class Histogram(NamedTuple):
    """Counts, and the edges between them."""

    hist: Tensor
    bin_edges: Tensor


def histogram(
    input: Tensor,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """(hist [n], bin_edges [n + 1]): how many elements, or the sum of whose weights, lie between neighbouring edges.

    bins: a number of equal parts of `range`, (low, high), by default what input spans; or the rising edges, a tensor.
    A part holds its lower edge, the last one both. density: such that the sum of hist times widths is 1. In input's
    dtype. Raises DTypeError for integers, ArgumentError for no bins or a range that does not rise, ShapeError for
    weights of another shape.
    """
    if not input.is_floating_point():
        raise DTypeError("histogram", "a floating-point tensor", input.dtype.name, "cast it: x.float()")
    if weight is not None and weight.shape != input.shape:
        raise ShapeError("histogram", f"weight of shape {tuple(input.shape)}", f"{tuple(weight.shape)}")
    x = to(input.detach(), accumulator(input.dtype)).array.reshape(-1)
    edges = _edges(x, bins, range)
    at = np.searchsorted(edges, x, "right") - 1
    at = np.where(x == edges[-1], edges.size - 2, at)
    at = np.where((x >= edges[0]) & (x <= edges[-1]), at, edges.size - 1)  # what lies outside, into a part of its own
    if weight is None:
        counts = np.bincount(at, minlength=edges.size)
    else:  # CuPy's bincount adds weights in any order
        counts = added_at(weight.detach().array.reshape(-1).astype(np.float64), (at,), (edges.size,))
    counts = counts[:-1].astype(edges.dtype)
    if density:
        with ignore_fp_errors():
            counts = counts / counts.sum() / (edges[1:] - edges[:-1])
    return Histogram(to(Tensor(counts), input.dtype), to(Tensor(edges), input.dtype))


def _edges(x: Any, bins: Any, range: Sequence[float] | None) -> Any:
    if isinstance(bins, Tensor):
        if bins.ndim != 1 or bins.numel() < 2:
            raise ShapeError("histogram", "bins as edges [2 or more]", f"shape {tuple(bins.shape)}")
        return bins.detach().array.astype(x.dtype)
    if not isinstance(bins, int) or not 1 <= bins < 1 << 40:
        raise ArgumentError("histogram", "bins from 1, or edges as a tensor", repr(bins))
    if range is not None and (len(range) != 2 or not range[0] <= range[1]):
        raise ArgumentError("histogram", "range as (low, high)", repr(range))
    low, high = range if range is not None else (x.min(), x.max()) if x.size else (0.0, 1.0)
    same = low == high
    low, high = low - 0.5 * same, high + 0.5 * same
    parts = np.arange(bins + 1, dtype=np.float64, like=x) / bins
    return (low * (1 - parts) + high * parts).astype(x.dtype)
