"""Sampling and resizing: grids that change nothing, borders, NaN, formulas worked by hand, adjoints."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import autocast, ops, tensor
from ampkit.base.dtypes import float16, float32, float64
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.tape import grad

RANDOM = np.random.default_rng(0)
NAN = float("nan")


def normal(*shape, requires_grad=False):
    return tensor(RANDOM.normal(size=shape), requires_grad=requires_grad)


def product(a, b):
    """The sum of a * b."""
    return (a.numpy(force=True) * b.numpy(force=True)).sum()


def grid_of(*points):
    """A grid of one row: points (x, y) of one image."""
    return tensor(np.array(points, np.float64)[None, None])


ROW = [[[[10.0, 20.0, 40.0]]]]  # pixels at x = -1, 0, 1 with align_corners, at -2/3, 0, 2/3 without


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_the_grid_of_the_identity_gives_the_image_again(mode, corners):
    x = normal(1, 2, 4, 5)
    grid = ops.affine_grid(tensor(np.eye(2, 3)[None]), (1, 2, 4, 5), corners)
    np.testing.assert_allclose(ops.grid_sample(x, grid, mode, align_corners=corners).numpy(), x.numpy(), atol=1e-12)


def test_an_affine_grid_turns_and_shifts():
    turned = tensor([[[0.0, -1.0, 0.5], [1.0, 0.0, 0.0]]])  # x' = 0.5 - y, y' = x
    grid = ops.affine_grid(turned, (1, 1, 2, 2), True)
    assert grid.tolist() == [[[[1.5, -1], [1.5, 1]], [[-0.5, -1], [-0.5, 1]]]]


@pytest.mark.parametrize(
    ("x", "mode", "padding", "corners", "found"),
    [
        (0.5, "bilinear", "zeros", True, 30),
        (0.5, "nearest", "zeros", True, 40),  # 1.5 is a tie, and goes to the even pixel
        (-0.5, "nearest", "zeros", True, 10),
        (1.5, "bilinear", "zeros", True, 20),  # half the last pixel, half nothing
        (1.5, "bilinear", "border", True, 40),
        (1.5, "bilinear", "reflection", True, 30),
        (-2.0, "bilinear", "reflection", True, 20),
        (1.0, "bilinear", "zeros", False, 20),  # the edge of the last pixel
        (1.0, "bilinear", "reflection", False, 40),
        (-1.5, "nearest", "reflection", False, 10),
        (9.0, "bilinear", "zeros", False, 0),
        (NAN, "bilinear", "zeros", False, NAN),
        (NAN, "nearest", "border", False, NAN),
        (float("inf"), "nearest", "zeros", False, 0),
        (float("inf"), "nearest", "border", False, 40),
    ],
)
def test_places_between_pixels_and_beyond_the_image(x, mode, padding, corners, found):
    np.testing.assert_allclose(
        ops.grid_sample(tensor(ROW, dtype=float64), grid_of((x, 0)), mode, padding, corners).item(), found
    )


def test_cubic_weights_are_those_of_keys():
    row = tensor(np.array([[[[1.0, 2.0, 4.0, 8.0]]]]))
    weights = np.array([-0.75 / 8, 0.5 + 0.75 / 8, 0.5 + 0.75 / 8, -0.75 / 8])  # half way between two pixels
    assert ops.grid_sample(row, grid_of((0, 0)), "bicubic").item() == pytest.approx(weights @ [1, 2, 4, 8])
    middle = ops.interpolate(row, (1, 2), mode="bicubic")
    at_half = weights @ [1, 1, 2, 4], weights @ [2, 4, 8, 8]
    np.testing.assert_allclose(middle.numpy().ravel(), at_half)


def test_a_pixel_that_is_not_read_spoils_nothing():
    x = tensor(np.array([[[[np.nan, np.inf, 3.0]]]]))
    assert ops.grid_sample(x, grid_of((1.5, 0)), align_corners=True).item() == 1.5


def test_the_gradient_of_a_pixel_is_the_sum_over_its_samples():
    x = tensor(ROW, dtype=float64, requires_grad=True)
    (dx,) = grad([ops.grid_sample(x, grid_of((0.5, 0), (0.25, 0), (-3, 0)), align_corners=True).sum()], [x])
    assert dx.tolist() == [[[[0, 1.25, 0.75]]]]


def test_a_16_bit_image_with_a_float32_grid_is_float32_and_affine_grids_stay_so_in_a_region():
    x, theta = tensor(np.ones((1, 1, 2, 2)), dtype=float16), tensor(np.eye(2, 3)[None], dtype=float32)
    with autocast(dtype=float16):
        grid = ops.affine_grid(theta, (1, 1, 2, 2))
        assert grid.dtype == ops.grid_sample(x, grid).dtype == ops.interpolate(x, 3).dtype == float32
    assert ops.interpolate(x, 3, mode="bicubic").dtype == float16


@pytest.mark.parametrize(
    ("call", "kind", "line"),
    [
        (lambda t: ops.grid_sample(t(1, 2, 3), t(1, 2, 3)), ShapeError, "needs input [N, C, H, W] and grid"),
        (lambda t: ops.grid_sample(t(1, 2, 3, 3), t(2, 2, 3, 2)), ShapeError, "got [1, 2, 3, 3] and [2, 2, 3, 2]"),
        (lambda t: ops.grid_sample(t(1, 2, 3, 3), t(1, 2, 3, 3)), ShapeError, "needs input [N, C, H, W] and grid"),
        (lambda t: ops.grid_sample(t(1, 2, 0, 3), t(1, 2, 3, 2)), ShapeError, "images of at least one pixel"),
        (lambda t: ops.grid_sample(t(1, 2, 3, 3), t(1, 2, 3, 2), "cubic"), ArgumentError, "mode bilinear, nearest"),
        (lambda t: ops.grid_sample(t(1, 1, 2, 2, 2), t(1, 1, 1, 1, 3), "bicubic"), ArgumentError, "for volumes"),
        (lambda t: ops.grid_sample(t(1, 1, 2, 2).long(), t(1, 1, 1, 2).long()), DTypeError, "a floating-point tensor"),
        (lambda t: ops.affine_grid(t(1, 2, 3), (2, 1, 3, 3)), ShapeError, "needs theta [N, 2, 3] and size"),
        (lambda t: ops.affine_grid(t(1, 2, 3), (1, 1, 3)), ShapeError, "needs theta [N, 2, 3] and size"),
    ],
)
def test_what_does_not_fit_is_named(call, kind, line):
    with pytest.raises(kind) as error:
        call(lambda *shape: tensor(np.ones(shape), dtype=float32))
    assert line in str(error.value)


# interpolation


@pytest.mark.parametrize("options", [
    {"mode": "nearest"}, {"mode": "bilinear"}, {"mode": "bicubic", "align_corners": True},
    {"mode": "bilinear", "antialias": True}, {"mode": "bicubic", "antialias": True},
])  # fmt: skip
@pytest.mark.parametrize("size", [(9, 4), (2, 13), (1, 1)])
def test_the_gradient_of_interpolate_is_its_adjoint(options, size):
    x = normal(2, 3, 5, 7, requires_grad=True)
    y = ops.interpolate(x, size, **options)
    dy = normal(*y.shape)
    (dx,) = grad([y], [x], [dy])
    np.testing.assert_allclose(product(dy, y), product(dx, x))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
def test_interpolate_keeps_a_constant(mode, antialias):
    out = ops.interpolate(tensor(np.full((1, 1, 5, 6), 3.0)), (2, 11), mode=mode, antialias=antialias)
    np.testing.assert_allclose(out.numpy(), 3, rtol=1e-14)


def test_antialiasing_mixes_all_that_a_smaller_pixel_covers():
    row = tensor(np.arange(8.0).reshape(1, 1, 1, 8))
    weights = np.array([1, 3, 5, 7, 7, 5, 3, 1]) / 32  # a triangle twice as wide as the four pixels of one
    found = ops.interpolate(row, (1, 2), mode="bilinear", antialias=True).numpy().ravel()
    left = weights[2:] @ np.arange(6) / weights[2:].sum()
    np.testing.assert_allclose(found, [left, 7 - left])


@pytest.mark.parametrize("shape", [(2, 3, 6), (2, 3, 6, 4), (1, 2, 3, 6, 4)])
def test_area_is_the_adaptive_mean(shape):
    x = normal(*shape)
    pool = {3: ops.adaptive_avg_pool1d, 4: ops.adaptive_avg_pool2d, 5: ops.adaptive_avg_pool3d}[len(shape)]
    np.testing.assert_array_equal(ops.interpolate(x, 2, mode="area").numpy(), pool(x, 2).numpy())


def test_integers_take_the_nearest():
    x = tensor(np.array([[[[1, 2]]]], np.uint8))
    assert ops.interpolate(x, (1, 4)).tolist() == [[[[1, 1, 2, 2]]]]
