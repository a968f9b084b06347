"""Grid sampling of images and volumes, and the grids of affine maps."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import TracedArray, apply, plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

from ..indexing.deterministic_scatter import index_on_device_of
from ..indexing.getitem import advanced_getitem, put_into_zeros
from ..pointwise.selection import select_or_zero

__all__ = ["affine_grid", "grid_sample"]

MODES, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
_A = -0.75  # of Keys' cubic convolution, as PyTorch has it


class Tap(NamedTuple):
    """A pixel that each sample reads along one axis: index, whether inside, weight, derivative of the weight."""

    index: Any
    inside: Any
    weight: Any
    derivative: Any


@op(cast=Cast.WIDEST, integers="refuse")
def grid_sample(input: Array, grid: Array, mode="bilinear", padding_mode="zeros", align_corners: bool | None = None):
    """input sampled at the coordinates of grid, interpolated between pixels.

    input [N, C, H, W] or [N, C, D, H, W], grid [N, *size, 2 or 3]: (x, y) or (x, y, z) from -1 to 1 over the image:
    the centers of the outer pixels with align_corners, their edges without -> [N, C, *size]. mode: "bilinear" (of
    volumes trilinear), "nearest" (ties to even) or "bicubic" (images). padding_mode: "zeros", "border" or "reflection"
    outside the image. Computed in float32, rounded once.
    Raises ShapeError for shapes that do not fit, ArgumentError for other modes.
    Jaderberg, Simonyan, Zisserman, Kavukcuoglu 2015, arXiv:1506.02025, eq. 3-7; Keys 1981, sec. II, with a = -0.75.
    """
    rows = _rows(input)
    total: Any = 0
    for index, inside, weights, _ in taps_of_samples(input.shape, grid, mode, padding_mode, align_corners):
        total = total + _pixels_at(rows, index, inside) * _product(weights).reshape(-1, 1)
    images = np.moveaxis(total.reshape(*grid.shape[:-1], total.shape[-1]), -1, 1)
    return images, Saved(input=input, grid=grid)


@grid_sample.check
def grid_sample_check(input, grid, mode, padding_mode, align_corners):
    if mode not in MODES or padding_mode not in PADDINGS:
        needs = f"mode {', '.join(MODES)}, and padding_mode {', '.join(PADDINGS)}"
        raise ArgumentError("grid_sample", needs, f"{mode!r} and {padding_mode!r}")
    x, g = (tuple(getattr(a, "shape", ())) for a in (input, grid))
    if len(x) not in (4, 5) or len(g) != len(x) or g[0] != x[0] or g[-1] != len(x) - 2:
        needs = "input [N, C, H, W] and grid [N, H', W', 2], or both with depth and 3"
        raise ShapeError("grid_sample", needs, f"{list(x)} and {list(g)}")
    if 0 in x[1:]:
        raise ShapeError("grid_sample", "images of at least one pixel", f"input {list(x)}")
    if mode == "bicubic" and len(x) == 5:
        raise ArgumentError("grid_sample", "mode bilinear or nearest for volumes", repr(mode))


@grid_sample.backward
def grid_sample_backward(dy, saved, needs, mode, padding_mode, align_corners):
    rows, grad, shape = _rows(saved.input), _rows(dy), saved.input.shape
    indices, grads = [], []
    dcoordinates: list[Any] = [0] * (len(shape) - 2)
    for index, inside, weights, derivatives in taps_of_samples(shape, saved.grid, mode, padding_mode, align_corners):
        if needs[0]:
            indices.append(index)
            grads.append(select_or_zero(grad * _product(weights).reshape(-1, 1), inside.reshape(-1, 1)))
        if needs[1] and mode != "nearest":
            dot = (grad * _pixels_at(rows, index, inside)).sum(-1)
            for i, each in enumerate(derivatives):
                dcoordinates[i] = dcoordinates[i] + dot * _product([*weights[:i], each, *weights[i + 1 :]])
    dx = dgrid = None
    if needs[0]:
        scattered = apply(put_into_zeros, np.concatenate(grads), (np.concatenate(indices),), rows.shape)
        dx = np.moveaxis(scattered.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    if needs[1]:
        flat = np.zeros_like(saved.grid) if mode == "nearest" else np.stack(dcoordinates[::-1], -1)
        dgrid = flat.reshape(saved.grid.shape)
    return dx, dgrid


def _rows(images: Array) -> Array:
    # [N, C, *size] -> [N * size, C]: one pixel a row
    return np.moveaxis(images, 1, -1).reshape(-1, images.shape[1])


def _pixels_at(rows: Array, index: Array, inside: Array) -> Array:
    return select_or_zero(apply(advanced_getitem, rows, (index,)), inside.reshape(-1, 1))


def _product(weights: Any) -> Any:
    return prod(weights[1:], start=weights[0])


def taps_of_samples(shape: Any, grid: Any, mode: str, padding: str, corners: Any) -> Any:
    """Per pixel that a sample reads: (row, whether inside, weight per axis, derivative of the weight per axis)."""
    size = shape[2:]
    sides = [grid[..., len(size) - 1 - i].reshape(-1) for i in range(len(size))]
    samples = np.arange(sides[0].shape[0], like=plain(grid))
    first = samples // max(prod(grid.shape[1:-1]), 1) * prod(size)
    taps = [_TAPS[mode](side, n, padding, bool(corners)) for side, n in zip(sides, size, strict=True)]
    for chosen in product(*taps):
        inside, row = True, 0
        for tap, n in zip(chosen, size, strict=True):
            inside, row = tap.inside & inside, row * n + tap.index
        yield row + first, inside, [t.weight for t in chosen], [t.derivative for t in chosen]


# along one axis of n pixels; index and inside are plain arrays, weights and derivatives traced if the grid is


def _tap(index: Any, n: int, weight: Any, derivative: Any) -> Tap:
    inside = (index >= 0) & (index <= n - 1)  # False for NaN
    return Tap(np.where(inside, index, 0).astype(np.int64), inside, weight, derivative)


def _pixels(side: Any, n: int, corners: bool) -> tuple[Any, float]:
    # (coordinates from -1 to 1 in pixels, pixels per unit).
    scale = (n - 1) / 2 if corners else n / 2
    return (side + 1) * scale - (0 if corners else 0.5), scale


def _pad_coordinates(index: Any, n: int, padding: str, corners: bool) -> tuple[Any, Any]:
    # (coordinates clamped or reflected into the image, the derivative of that: 1, -1, or 0 at the border and beyond).
    sign = np.ones_like(index)
    if padding == "reflection":
        low, span = (0.0, n - 1.0) if corners else (-0.5, float(n))
        if not span:
            return index * 0, sign * 0
        away = np.abs(index - low)
        folds = np.floor(away / span)
        odd = folds % 2 == 1
        rest = away - folds * span
        sign = np.where(odd, -1, 1) * np.where(index < low, -1, 1)
        index = np.where(odd, span - rest, rest) + low
    within = (index > 0) & (index < n - 1)
    return np.clip(index, 0, n - 1), (within * sign).astype(index.dtype)


def _linear(side: Any, n: int, padding: str, corners: bool) -> list[Tap]:
    at, scale = _pixels(side, n, corners)
    if padding != "zeros":
        padded, sign = _pad_coordinates(plain(at), n, padding, corners)
        at, scale = at * sign + (padded - plain(at) * sign) if isinstance(at, TracedArray) else padded, scale * sign
    low = np.floor(plain(at))
    t = at - low
    return [_tap(low, n, 1 - t, -scale), _tap(low + 1, n, t, scale)]


def _nearest(side: Any, n: int, padding: str, corners: bool) -> list[Tap]:
    at = plain(_pixels(side, n, corners)[0])
    at = at if padding == "zeros" else _pad_coordinates(at, n, padding, corners)[0]
    return [_tap(np.rint(at), n, np.where(at == at, 1, at), None)]  # NaN stays NaN


def _cubic(side: Any, n: int, padding: str, corners: bool) -> list[Tap]:
    at, scale = _pixels(side, n, corners)
    low = np.floor(plain(at))
    t = at - low
    taps = []
    for k in range(-1, 3):
        index = low + k
        padded = index if padding == "zeros" else np.rint(_pad_coordinates(index, n, padding, corners)[0])
        # the distance from the pixel, and which way it grows
        x, sign = (t - k, 1) if k <= 0 else (k - t, -1)
        far = k in (-1, 2)
        weight = ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A if far else ((_A + 2) * x - (_A + 3)) * x * x + 1
        derivative = (3 * _A * x - 10 * _A) * x + 8 * _A if far else (3 * (_A + 2) * x - 2 * (_A + 3)) * x
        taps.append(_tap(padded, n, weight, derivative * (sign * scale)))
    return taps


_TAPS = {"bilinear": _linear, "nearest": _nearest, "bicubic": _cubic}


@op(cast=Cast.KEEP, integers="refuse")
def affine_grid(theta: Array, size, align_corners: bool | None = None):
    """The grid for `grid_sample` whose output, of `size`, is the input mapped by theta.

    theta [N, 2, 3], size (N, C, H, W) -> [N, H, W, 2], or [N, 3, 4] and (N, C, D, H, W) -> [N, D, H, W, 3]: theta
    times (x, y, 1) of each pixel. In float32, also under autocast: 16 bits are too few for pixel coordinates.
    Raises ShapeError for shapes that do not fit. Jaderberg et al. 2015, arXiv:1506.02025, eq. 1.
    """
    axes, base = len(size) - 2, _base(theta, size, align_corners)
    found = (theta.reshape(size[0], 1, axes, axes + 1) * base).sum(-1)  # too small for a matrix product
    return found.reshape(size[0], *size[2:], axes), Saved()


@affine_grid.check
def affine_grid_check(theta, size, align_corners):
    shape = tuple(getattr(theta, "shape", ()))
    if not isinstance(size, (tuple, list)) or not all(hasattr(n, "__index__") for n in size):
        raise ArgumentError("affine_grid", "size (N, C, H, W) or (N, C, D, H, W)", repr(size))
    axes = len(size) - 2
    if axes not in (2, 3) or shape != (size[0], axes, axes + 1) or min(size) < 1:
        needs = "theta [N, 2, 3] and size (N, C, H, W), or [N, 3, 4] and (N, C, D, H, W)"
        raise ShapeError("affine_grid", needs, f"{list(shape)} and {tuple(size)}")


@affine_grid.backward
def affine_grid_backward(dy, saved, needs, size, align_corners):
    axes = len(size) - 2
    grad = dy.reshape(size[0], prod(size[2:]), axes, 1)
    return (grad * _base(plain(dy), size, align_corners)).sum(1)


def _base(like: Any, size: Any, corners: Any) -> Any:
    # (x, y, 1) of each pixel: [pixels, 1, 3].
    sides = [_coordinates(n, bool(corners)) for n in size[2:]]
    grids = np.meshgrid(*sides, indexing="ij")[::-1]
    base = np.stack([*(g.ravel() for g in grids), np.ones(prod(size[2:]))], -1)[:, None]
    return index_on_device_of(like, base.astype(plain(like).dtype))


def _coordinates(n: int, corners: bool) -> Any:
    # Of the centers of n pixels in [-1, 1]; corners: of which the first is at -1 and the last at 1.
    if corners:
        return np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
    return (2 * np.arange(n) + 1) / n - 1
