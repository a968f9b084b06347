"""Integrals by the trapezoid rule, slopes by differences, powers as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.base.dtypes import LOW, accumulator, float32
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.tensor import Tensor

from ..indexing.subscript import narrow
from ..pointwise.arithmetic import add, div, mul, sub
from ..pointwise.conversion import to
from ..reduction.cumulative import cumprod, cumsum
from ..reduction.reductions import sum
from ..shape.axes import axes, axis, axis_of
from ..shape.concatenation import cat
from ..shape.rearrange import flip
from ..shape.split_misc import diff
from ..shape.view import expand, movedim, reshape, unsqueeze

__all__ = ["cumulative_trapezoid", "gradient", "trapezoid", "trapz", "vander"]


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The integral of y along `dim` by the trapezoid rule, at places x or at steps of dx (1): [.., n] -> [..].

    x [n], or broadcast with y. In float32, rounded once; integers give float32. Raises ShapeError for other places,
    RangeError for an axis that is not there, ArgumentError for both x and dx.
    """
    return _narrowed(sum(_trapezoids("trapezoid", y, x, dx, dim), dim), y)


def trapz(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """`trapezoid`, by its older name."""
    return trapezoid(y, x, dx=dx, dim=dim)


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The running integral along `dim`, one place fewer: [.., n] -> [.., n - 1]; see `trapezoid`."""
    return _narrowed(cumsum(_trapezoids("cumulative_trapezoid", y, x, dx, dim), dim), y)


def _wide(x: Tensor) -> Tensor:
    return to(x, accumulator(x.dtype)) if x.is_floating_point() else to(x, float32)


def _narrowed(found: Tensor, like: Tensor) -> Tensor:
    return to(found, like.dtype) if like.dtype in LOW else found


def _trapezoids(where: str, y: Tensor, x: Tensor | None, dx: Any, dim: int) -> Tensor:
    at = axis(where, dim, y.ndim)
    if not y.ndim:
        raise ShapeError(where, "at least one axis", "shape ()")
    if x is not None and dx is not None:
        raise ArgumentError(where, "x or dx", "both")
    steps: Any = 1.0 if dx is None else dx
    if x is not None:
        if x.ndim == 1 and x.shape[0] == y.shape[at]:
            steps = reshape(diff(_wide(x)), [-1 if i == at else 1 for i in range(y.ndim)])
        else:
            steps = diff(_wide(_places(where, y, x, at)), dim=at)
    wide, n = _wide(y), max(y.shape[at] - 1, 0)
    pairs = add(narrow(wide, at, min(1, y.shape[at]), n), narrow(wide, at, 0, n))
    return mul(mul(pairs, steps), 0.5)


def _places(where: str, y: Tensor, x: Tensor, at: int) -> Tensor:
    # x with as many axes as y, as long as y along the axis `at`.
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
    """The slopes of input along each of `dim` (None: all axes), a tensor like input for each.

    Between neighbours by the second-order difference, at the ends by one of edge_order 1 or 2. spacing: the step, or
    one per axis, each a number or the coordinates, a tensor [n]. In float32, rounded once.
    Raises ArgumentError for spacings that do not fit, ShapeError for an axis of fewer than edge_order + 1 elements and
    for one that is named twice.
    Fornberg 1988, Mathematics of Computation 51, eq. 3.8 for three points.
    """
    dims = axes("gradient", dim, input.ndim)
    steps = list(spacing) if isinstance(spacing, (tuple, list)) else [1 if spacing is None else spacing] * len(dims)
    if len(steps) != len(dims):
        raise ArgumentError("gradient", f"{len(dims)} spacings, one per axis", f"{len(steps)}")
    if edge_order not in (1, 2):
        raise ArgumentError("gradient", "edge_order 1 or 2", repr(edge_order))
    found = [_slopes(_wide(input), at, step, edge_order) for at, step in zip(dims, steps, strict=True)]
    return tuple(_narrowed(slope, input) for slope in found)


def _slopes(x: Tensor, at: int, spacing: Any, order: int) -> Tensor:
    n, f = x.shape[axis_of("gradient", x, at)], movedim(x, at, 0)
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

    inner = [_through(f, 0, n - 2, step(0, n - 2), step(1, n - 2), 1)] if n > 2 else []
    if order == 1:
        ends = [div(sub(narrow(f, 0, i + 1, 1), narrow(f, 0, i, 1)), step(i, 1)) for i in (0, n - 2)]
    else:
        ends = [_through(f, i, 1, step(i, 1), step(i + 1, 1), at_end) for i, at_end in ((0, 0), (n - 3, 2))]
    return movedim(cat([ends[0], *inner, ends[1]]), 0, at)


def _through(f: Tensor, start: int, count: int, first: Any, second: Any, point: int) -> Tensor:
    """The slope, at the first, the middle or the last, of the parabola through each three neighbours.

    first, second: the steps between them.
    """
    values = [narrow(f, 0, start + i, count) for i in range(3)]
    rise, then = div(sub(values[1], values[0]), first), div(sub(values[2], values[1]), second)
    bend = div(sub(then, rise), add(first, second) if isinstance(first, Tensor) else first + second)
    if point == 2:
        return add(then, mul(bend, second))
    return sub(rise, mul(bend, first)) if point == 0 else add(rise, mul(bend, first))


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:  # noqa: N803 - PyTorch's name
    """The powers of a vector as columns, from N - 1 down to 0, or rising: [n] -> [n, N], N = n by default.

    In float32, as `cumprod`; integers in int64. Raises ShapeError for other shapes, ArgumentError for N below 0.
    """
    if x.ndim != 1:
        raise ShapeError("vander", "a vector [n]", f"shape {tuple(x.shape)}")
    return powers_of(x, N, increasing)


def powers_of(x: Tensor, N: int | None, increasing: bool) -> Tensor:  # noqa: N803
    """`vander` of vectors [.., n] -> [.., n, N]."""
    width = x.shape[-1] if N is None else N
    if not isinstance(width, int) or width < 0:
        raise ArgumentError("vander", "N from 0", repr(N))
    ones = Tensor(np.ones_like(x.array)[..., None][..., : min(1, width)])
    powers = cumprod(cat([ones, expand(unsqueeze(x, -1), (*x.shape, max(width - 1, 0)))], -1), -1)
    return powers if increasing else flip(powers, (-1,))
