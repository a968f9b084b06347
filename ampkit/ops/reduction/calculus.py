"""Numerical calculus along an axis: differences, gradients, integrals by the trapezoid rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.base.dtypes import LOW, accumulator, default, promote
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, check_choice
from ampkit.base.formats import need_arithmetic
from ampkit.core.arguments import without_numpy
from ampkit.core.tensor import Tensor

from ..argument_checks import normalize_axes, normalize_axis, normalize_axis_of
from ..indexing.getitem import narrow
from ..pointwise.arithmetic import add, div, mul, sub
from ..pointwise.comparison import ne
from ..pointwise.conversion import to
from ..shape.join_split import cat
from ..shape.view import movedim, reshape
from .cumulative import cumsum
from .reductions import sum

__all__ = ["cumulative_trapezoid", "diff", "gradient", "trapezoid", "trapz"]


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The n-th differences of neighbours along `dim`; of bool, whether neighbours differ.

    prepend, append: joined to input first, unless n is 0. Raises ArgumentError for a negative n.
    """
    if n < 0:
        raise ArgumentError("diff", "n from 0", f"{n}")
    at = normalize_axis_of("diff", input, dim)
    more = [t for t in (prepend, input, append) if t is not None] if n else [input]
    found = cat(more, at) if len(more) > 1 else input
    for _ in range(min(n, found.shape[at])):
        length = found.shape[at] - 1
        pair = narrow(found, at, 1, length), narrow(found, at, 0, length)
        found = ne(*pair) if found.array.dtype == np.bool_ else sub(*pair)
    return found


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The integral of y along `dim` by the trapezoid rule, at sample points x or with step dx (1): [.., n] -> [..].

    x [n], or broadcast with y. In float32, rounded once; integers give the default dtype. Raises ShapeError for an
    x that does not fit, RangeError for an axis out of range, ArgumentError for both x and dx.
    """
    return _rounded(sum(_trapezoid_areas("trapezoid", y, x, dx, dim), dim), y, x)


def trapz(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """Alias of `trapezoid`."""
    return trapezoid(y, x, dx=dx, dim=dim)


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The cumulative integral along `dim`: [.., n] -> [.., n - 1]; see `trapezoid`."""
    return _rounded(cumsum(_trapezoid_areas("cumulative_trapezoid", y, x, dx, dim), dim), y, x)


def _to_accumulator(x: Tensor) -> Tensor:
    return to(x, accumulator(x.array.dtype if x.is_floating_point() else default()))


def _rounded(found: Tensor, *operands: Any) -> Tensor:
    # In the dtype of the tensors among the operands, if that has 16 bits.
    floats = [t.array.dtype for t in operands if isinstance(t, Tensor) and t.is_floating_point()]
    dtype = promote(*floats) if floats else default()
    return to(found, dtype) if dtype in LOW else found


def _trapezoid_areas(where: str, y: Tensor, x: Tensor | None, dx: Any, dim: int) -> Tensor:
    need_arithmetic(where, y, x)
    at = normalize_axis(where, dim, y.ndim)
    if not y.ndim:
        raise ShapeError(where, "at least one axis", "shape ()")
    if x is not None and dx is not None:
        raise ArgumentError(where, "x or dx", "both")
    steps: Any = 1.0 if dx is None else dx
    if x is not None:
        if x.ndim == 1 and x.shape[0] == y.shape[at]:
            steps = reshape(diff(_to_accumulator(x)), [-1 if i == at else 1 for i in range(y.ndim)])
        else:
            steps = diff(_to_accumulator(_sample_points(where, y, x, at)), dim=at)
    wide, n = _to_accumulator(y), max(y.shape[at] - 1, 0)
    pairs = add(narrow(wide, at, min(1, y.shape[at]), n), narrow(wide, at, 0, n))
    return mul(mul(pairs, steps), 0.5)


def _sample_points(where: str, y: Tensor, x: Tensor, at: int) -> Tensor:
    # x with as many axes as y, and y's length along axis `at`.
    shape = (1,) * (y.ndim - x.ndim) + tuple(x.shape)
    fits = len(shape) == y.ndim and all(
        n == m or (1 in (n, m) and i != at) for i, (n, m) in enumerate(zip(shape, y.shape, strict=True))
    )
    if not fits:
        got = f"{tuple(x.shape)}"
        raise ShapeError(where, f"x of shape ({y.shape[at]},), or one that broadcasts with {tuple(y.shape)}", got)
    return reshape(x, shape)


def gradient(
    input: Tensor, *, spacing: Any = 1, dim: int | Sequence[int] | None = None, edge_order: int = 1
) -> tuple[Tensor, ...]:
    """The derivatives of input along each of `dim` (None: all axes), one tensor like input per axis.

    By central differences of second order, at the ends of order edge_order (1 or 2). spacing: the step, or
    one per axis, each a number or the coordinates, a tensor [n]. In float32, rounded once.
    Raises ArgumentError for spacings that do not fit, ShapeError for an axis of fewer than edge_order + 1 elements and
    for a repeated axis.
    Fornberg 1988, Mathematics of Computation 51, eq. 3.8 for three points.
    """
    dims = normalize_axes("gradient", dim, input.ndim)
    steps = list(spacing) if isinstance(spacing, (tuple, list)) else [1 if spacing is None else spacing] * len(dims)
    steps = [without_numpy(step) for step in steps]
    if len(steps) != len(dims):
        raise ArgumentError("gradient", f"{len(dims)} spacings, one per axis", f"{len(steps)}")
    check_choice("gradient", "edge_order", edge_order, 1, 2)
    found = [_axis_gradient(_to_accumulator(input), at, step, edge_order) for at, step in zip(dims, steps, strict=True)]
    return tuple(_rounded(grad, input, *steps) for grad in found)


def _axis_gradient(x: Tensor, at: int, spacing: Any, order: int) -> Tensor:
    n, f = x.shape[normalize_axis_of("gradient", x, at)], movedim(x, at, 0)
    if n <= order:
        raise ShapeError("gradient", f"at least {order + 1} elements along dim {at}", f"{n}")
    if isinstance(spacing, Tensor) and (spacing.ndim > 1 or (spacing.ndim and spacing.shape[0] != n)):
        raise ShapeError("gradient", f"coordinates [{n}]", f"{list(spacing.shape)}")
    if not isinstance(spacing, (Tensor, int, float)):
        raise DTypeError("gradient", "a number or a Tensor as spacing", type(spacing).__name__)
    steps = None
    if isinstance(spacing, Tensor) and spacing.ndim:
        steps = reshape(diff(to(spacing, x.dtype)), (-1,) + (1,) * (f.ndim - 1))

    def step(start: int, count: int) -> Any:
        return spacing if steps is None else narrow(steps, 0, start, count)

    inner = [_parabola_derivative(f, 0, n - 2, step(0, n - 2), step(1, n - 2), 1)] if n > 2 else []
    if order == 1:
        ends = [div(sub(narrow(f, 0, i + 1, 1), narrow(f, 0, i, 1)), step(i, 1)) for i in (0, n - 2)]
    else:
        ends = [_parabola_derivative(f, i, 1, step(i, 1), step(i + 1, 1), at_end) for i, at_end in ((0, 0), (n - 3, 2))]
    return movedim(cat([ends[0], *inner, ends[1]]), 0, at)


def _parabola_derivative(f: Tensor, start: int, count: int, first: Any, second: Any, point: int) -> Tensor:
    """The derivative, at its first, middle or last point (`point` 0, 1, 2), of the parabola through three neighbours.

    first, second: the steps between the points. Their products, which may be out of range, are not formed.
    """
    values = [narrow(f, 0, start + i, count) for i in range(3)]
    if first is second and point == 1:
        return div(sub(values[2], values[0]), 2 * first)
    left, right = div(sub(values[1], values[0]), first), div(sub(values[2], values[1]), second)
    share = 0.5 if first is second else div(second if point == 2 else first, add(first, second))
    bend = mul(sub(right, left), share)
    if point == 2:
        return add(right, bend)
    return sub(left, bend) if point == 0 else add(left, bend)
