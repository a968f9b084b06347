"""Registers the terms of reductions.h as kernels of sums, products, extremes, counts, norms, variances and logsumexp.

A backend gives `reduced(term, x, axes, dtype, divisor, root, center)`: the joined terms of x over `axes`, which stay
with length 1, divided by `divisor`; root: the square root of that; center: an array of the result's shape that the term
has. It raises UnsupportedError for arrays and dtypes that it does not take. The gradients are functions of functions.h.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import Array, DType, bool_, float32, int64
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.accumulate import sum_over
from ampkit.core.autograd.saved import Saved
from ampkit.ops.argument_checks import normalize_axes
from ampkit.ops.nn.softmax import logsumexp
from ampkit.ops.reduction import norms, reductions, statistics
from ampkit.ops.reduction.cumulative import cumsum

from .launcher import Launcher, supports
from .registration import on

Reduced = Callable[..., Any]
Predicate = Callable[..., bool]
NORMS = {None: "AddSquares", "fro": "AddSquares", 2: "AddSquares", 1: "AddAbs", inf: "MaxAbs", -inf: "MinAbs"}
SMALL = np.float32(2.0**-120)
EXACT = 1 << 24  # the largest count that a float32 sum of ones reaches exactly


def register_reductions(launcher: Launcher, reduced: Reduced, fits: Predicate) -> None:
    """Register sum, mean, amax, amin, prod, norms and variances. fits: whether kernels read an array."""
    _register_sums(launcher, reduced, fits)
    for op, term in ((reductions.amax, "Maximum"), (reductions.amin, "Minimum")):
        _register_extreme(launcher, reduced, fits, op, term)
    _register_norm(launcher, reduced, fits)
    _register_product(launcher, reduced, fits)
    _register_sum_over(launcher, reduced, fits)
    for op, root in ((statistics.var_, False), (statistics.std_, True)):
        _register_variance(launcher, reduced, fits, op, root)


def _register_product(launcher: Launcher, reduced: Reduced, fits: Predicate) -> None:
    def product(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
        axes = normalize_axes("", dim, input.ndim)
        return as_result(reduced("Multiply", input, axes, dtype), axes, keepdim), Saved(input=input)

    launcher.on(reductions.prod, product, fits)


def _register_sum_over(launcher: Launcher, reduced: Reduced, fits: Predicate) -> None:
    def summed(gradient: Array, axes: tuple[int, ...]) -> Any:
        return reduced("Add", gradient, axes, float32)

    launcher.on(sum_over, summed, fits, launches=launcher.reductions_wait)


def as_result(found: Array, axes: tuple[int, ...], keepdim: bool) -> Any:
    """A reduced array, without the reduced axes unless `keepdim`."""
    return found if keepdim else found.squeeze(axes)


def _with_axes(array: Array, x: Array, axes: tuple[int, ...]) -> Array:
    # A result of a reduction of x over `axes`, or its gradient, in float32, with the axes.
    return _cast(array, float32).reshape([1 if i in axes else n for i, n in enumerate(x.shape)])


def _cast(array: Array, dtype: DType) -> Any:
    return array if array.dtype == dtype else backends.backend_of(array).cast(array, dtype)


def _count(x: Array, axes: tuple[int, ...]) -> int:
    return prod([x.shape[i] for i in axes])


def _backward_fits(launcher: Launcher, fits: Predicate, saves: tuple[str, ...]) -> Predicate:
    """A predicate: whether the arrays `saves` are saved, readable, and large enough for a kernel."""

    def readable(dy: Array, saved: Saved, needs: Any, *args: Any, **params: Any) -> bool:
        held = [getattr(saved, name, None) for name in saves]
        if needs[0] is None or any(each is None for each in held):
            return False
        x = saved.input
        return bool(x.size >= launcher.min_elements and fits(x) and supports(dy, *held))

    return readable


# sum and mean, whose gradients are views


def _register_sums(launcher: Launcher, reduced: Reduced, fits: Predicate) -> None:
    def sum_(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
        axes = normalize_axes("", dim, input.ndim)
        return as_result(reduced("Add", input, axes, dtype), axes, keepdim), Saved(shape=input.shape)

    def mean(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
        axes = normalize_axes("", dim, input.ndim)
        found = reduced("Add", input, axes, dtype, _count(input, axes))
        return as_result(found, axes, keepdim), Saved(shape=input.shape)

    def sum_backward(dy: Array, saved: Saved, needs: Any, dim: Any, keepdim: bool, dtype: Any) -> Any:
        return repeated(_cast(dy, needs[0]), saved.shape, dim, keepdim)

    def mean_backward(dy: Array, saved: Saved, needs: Any, dim: Any, keepdim: bool, dtype: Any) -> Any:
        count = np.float32(reductions.count_reduced(saved.shape, dim))
        if launcher.reductions_wait:
            return repeated(launcher.forward("Div", (dy, float(count)), needs[0]), saved.shape, dim, keepdim)
        wide = _cast(dy, float32)
        share = np.divide(wide, count, out=np.empty_like(wide))  # of 0-d arrays, / would make numbers
        return repeated(_cast(share, needs[0]), saved.shape, dim, keepdim)

    def repeated(dy: Array, shape: tuple[int, ...], dim: Any, keepdim: bool) -> Any:
        full = keepdim or not dy.ndim
        return launcher.broadcast_to(dy if full else reductions.with_reduced(dy, shape, dim, keepdim), shape)

    def wanted(dy: Array, saved: Saved, needs: Any, *args: Any, **params: Any) -> bool:
        return needs[0] is not None and supports(dy)

    waits = launcher.reductions_wait
    launcher.on(reductions.sum, sum_, fits, launches=waits)
    launcher.on(reductions.mean, mean, fits, launches=waits)
    launcher.on_small_backward(reductions.sum, sum_backward, wanted)
    launcher.on_small_backward(reductions.mean, mean_backward, wanted, launches=waits)


# extremes


def _register_extreme(launcher: Launcher, reduced: Reduced, fits: Predicate, op: Any, term: str) -> None:
    def forward(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
        axes = normalize_axes("", dim, input.ndim)
        out = as_result(reduced(term, input, axes, dtype), axes, keepdim)
        return out, Saved(input=input, out=out)

    def backward(dy: Array, saved: Saved, needs: Any, dim: Any, keepdim: bool) -> Any:
        x = saved.input
        axes = normalize_axes("", dim, x.ndim)
        out, grad = (_with_axes(each, x, axes) for each in (saved.out, dy))
        ties = reduced("CountEqual", x, axes, float32, center=out)
        return launcher.forward("WhereEqual", (grad / ties, x, out), needs[0])

    launcher.on(op, forward, fits, launches=launcher.reductions_wait)
    launcher.on_small_backward(op, backward, _backward_fits(launcher, fits, ("input", "out")))


# norms


def _register_norm(launcher: Launcher, reduced: Reduced, fits: Predicate) -> None:
    def norm(input: Array, p: Any, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
        axes, term = normalize_axes("", dim, input.ndim), NORMS[p]
        out = as_result(reduced(term, input, axes, dtype, root=term == "AddSquares"), axes, keepdim)
        return out, Saved(input=input, out=out)

    def backward(dy: Array, saved: Saved, needs: Any, p: Any, dim: Any, keepdim: bool, dtype: Any) -> Any:
        x = saved.input
        axes = normalize_axes("", dim, x.ndim)
        out, grad = (_with_axes(each, x, axes) for each in (saved.out, dy))
        return _times_relative_difference(launcher, grad, x, 0.0, out, needs[0])

    def forward_fits(input: Array, p: Any, *args: Any, **params: Any) -> bool:
        return p in NORMS and fits(input)

    def backward_fits(dy: Array, saved: Saved, needs: Any, p: Any, *args: Any, **params: Any) -> bool:
        return NORMS.get(p) == "AddSquares" and readable(dy, saved, needs)

    readable = _backward_fits(launcher, fits, ("input", "out"))
    launcher.on(norms.norm_, norm, forward_fits)
    launcher.on_small_backward(norms.norm_, backward, backward_fits)


def _times_relative_difference(
    launcher: Launcher, grad: Array, x: Array, center: Any, size: Array, dtype: DType
) -> Any:
    """grad * (x - center) / size, 0 where size is 0."""
    if not launcher.keeps_subnormals:  # grad / size may be one
        return launcher.forward("TimesRelativeDifference", (grad, x, center, size), dtype)
    zero = size == 0
    share = np.where(zero, np.float32(0), grad / np.where(zero, np.float32(1), size))
    return launcher.forward("TimesDifference", (share, x, center), dtype)


# variance and standard deviation: the mean, then the squared deviations from it


def _register_variance(launcher: Launcher, reduced: Reduced, fits: Predicate, op: Any, root: bool) -> None:
    def enough(input: Array, dim: Any, keepdim: bool, correction: float) -> bool:
        return fits(input) and _count(input, normalize_axes("", dim, input.ndim)) > correction

    def forward(input: Array, dim: Any, keepdim: bool, correction: float, *, dtype: DType) -> Any:
        axes = normalize_axes("", dim, input.ndim)
        count = _count(input, axes)
        mean = reduced("Add", input, axes, float32, count)
        out = as_result(reduced("AddSquares", input, axes, dtype, count - correction, root, mean), axes, keepdim)
        return out, Saved(input=input, mean=mean, **({"out": out} if root else {}))

    def backward(dy: Array, saved: Saved, needs: Any, dim: Any, keepdim: bool, correction: float) -> Any:
        x = saved.input
        axes = normalize_axes("", dim, x.ndim)
        count, grad = _count(x, axes), _with_axes(dy, x, axes)
        if root:
            grad, out = grad * np.float32(1 / (count - correction)), _with_axes(saved.out, x, axes)
            if launcher.keeps_subnormals and ((out != 0) & (out < SMALL)).any():
                raise UnsupportedError  # such elements differ from their mean by less than float32 tells
            return _times_relative_difference(launcher, grad, x, saved.mean, out, needs[0])
        grad = grad * np.float32(2 / (count - correction))
        return launcher.forward("TimesDifference", (grad, x, saved.mean), needs[0])

    launcher.on(op, forward, enough)
    launcher.on_small_backward(op, backward, _backward_fits(launcher, fits, ("input", "mean", *["out"] * root)))


# logsumexp: the logarithm of the sum of exp(x - maximum)


def register_logsumexp(launcher: Launcher, reduced: Reduced, fits: Predicate) -> None:
    """Register logsumexp, whose op stands with softmax."""

    def forward(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
        axes = normalize_axes("", dim, input.ndim)
        most = reduced("Maximum", input, axes, float32)
        total = reduced("AddExps", input, axes, float32, center=most)
        out = launcher.forward("LogSumExp", (total, most), dtype)
        return as_result(out, axes, keepdim), Saved(input=input, most=most, total=total)

    def backward(dy: Array, saved: Saved, needs: Any, dim: Any, keepdim: bool) -> Any:
        x = saved.input
        grad = _with_axes(dy, x, normalize_axes("", dim, x.ndim))
        share = grad / np.where(saved.total == 0, np.float32(1), saved.total)
        return launcher.forward("TimesExp", (share, x, saved.most), needs[0])

    launcher.on(logsumexp, forward, fits)
    launcher.on_small_backward(logsumexp, backward, _backward_fits(launcher, fits, ("input", "most", "total")))


# cumsum, whose gradient is the sum from the end


def register_cumsum(backend: str, summed: Callable[..., Any], fits: Predicate, min_elements: int = 0) -> None:
    """Register cumsum. summed(x, dim, dtype, reverse) -> its cumulative sum; fits(x, dim)."""

    def forward(input: Array, dim: int, dtype: DType) -> Any:
        return summed(input, dim, dtype, False), Saved()

    def backward(dy: Array, saved: Saved, needs: Any, dim: int, dtype: Any) -> Any:
        return summed(dy, dim, needs[0], True)

    def fits_backward(dy: Array, saved: Saved, needs: Any, dim: int, dtype: Any) -> bool:
        return fits(dy, dim)

    on(cumsum, backend, forward, lambda input, dim, dtype: fits(input, dim), min_elements=min_elements)
    on(cumsum.backward_primitive, backend, backward, fits_backward, min_elements=min_elements)


# any, all, count_nonzero


def register_counts(launcher: Launcher, reduced: Reduced, fits: Predicate) -> None:
    """Register any, all and count_nonzero. fits: whether kernels read an array, which may be bool."""

    def known(input: Array, dim: Any, *args: Any, **params: Any) -> bool:
        return dim not in ((), []) and fits(input)

    def count_nonzero(input: Array, dim: Any, *, dtype: DType) -> Any:
        axes = normalize_axes("", dim, input.ndim)
        found = reduced("CountNonzero", input, axes, float32)
        return _cast(as_result(found, axes, False), int64)

    def exact(input: Array, dim: Any) -> bool:
        return known(input, dim) and _count(input, normalize_axes("", dim, input.ndim)) <= EXACT

    for op, term, comparison in ((reductions.any, "CountNonzero", "NotEqual"), (reductions.all, "CountZero", "Equal")):
        launcher.on(op, _compared(launcher, reduced, term, comparison), known)
    launcher.on(reductions.count_nonzero, count_nonzero, exact)


def _compared(launcher: Launcher, reduced: Reduced, term: str, comparison: str) -> Callable[..., Any]:
    def kernel(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
        axes = normalize_axes("", dim, input.ndim)
        found = as_result(reduced(term, input, axes, float32), axes, keepdim)
        return launcher.forward(comparison, (found, 0.0), bool_)

    return kernel
