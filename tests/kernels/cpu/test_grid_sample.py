"""grid_sample by compiled kernels: values and gradients are those of float64; what is not finite, of the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.backends.cpu.threads import get_num_threads, set_num_threads
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.testing import Case, check_precision, normal, uniform

pytestmark = pytest.mark.cpu

IMAGES, GRID = normal(3, 5, 9, 11), uniform(-1.3, 1.3, 3, 27, 31, 2)
GRID_OF_TWO = uniform(-2.3, 2.3, 2, 9, 10, 2)
CASES = [
    Case("grid_sample", IMAGES, GRID),
    Case("grid_sample", IMAGES, GRID, align_corners=True),
    Case("grid_sample", IMAGES, GRID, "bilinear", "border"),
    Case("grid_sample", IMAGES, GRID, "bilinear", "reflection"),
    Case("grid_sample", IMAGES, GRID, "nearest", "reflection"),
    Case("grid_sample", IMAGES, GRID, "bicubic"),
    Case("grid_sample", IMAGES, GRID, "bicubic", "border", True),
    Case("grid_sample", normal(1, 1, 12, 1), uniform(-1.3, 1.3, 1, 70, 60, 2)),
    Case("grid_sample", normal(2, 3, 9, 11), GRID_OF_TWO),
    Case("grid_sample", normal(2, 3, 9, 11), GRID_OF_TWO, "bicubic", "reflection"),
    Case("grid_sample", normal(2, 3, 9, 11), GRID_OF_TWO, "nearest", "border"),
    Case("grid_sample", normal(2, 70, 5, 4), GRID_OF_TWO),
    Case("grid_sample", normal(2, 70, 1, 1), GRID_OF_TWO, "bilinear", "reflection", True),
    Case("grid_sample", normal(2, 3, 4, 5, 6), uniform(-2.7, 2.7, 2, 3, 1, 2, 3), "bilinear", "reflection"),
    Case("grid_sample", normal(2, 3, 4, 5, 6), uniform(-1.3, 1.3, 2, 10, 11, 13, 3)),
]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_values_and_gradients_are_those_of_float64_within_tolerance(case, dtype):
    check_precision(case, dtype)


@pytest.mark.skipif(library() is None, reason=unavailable_reason())
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_the_kernel_is_what_runs(case):
    (out,) = case(*case.tensors(float32))
    assert out.node.kernel.name == "grid_sample_cpu"


def _gradients(images, points, dy, *options):
    x, grid = (Tensor(array, requires_grad=True) for array in (images, points))
    y = ops.grid_sample(x, grid, *options)
    return [each.numpy(force=True) for each in (y, *grad(y, [x, grid], Tensor(dy)))]


def _normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("channels", [3, 9])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_what_is_not_finite_comes_out_where_the_reference_has_it(mode, channels):
    rng = np.random.default_rng(0)
    images, points = rng.standard_normal((2, channels, 8, 8)), rng.uniform(-1.5, 1.5, (2, 40, 40, 2))
    images[0, 0, 0, 0], images[1, 1, 5, 5], images[0, 2, 3, 3] = np.inf, np.nan, -np.inf
    points[0, 3, 4, 0], points[1, 7, 7, 1], points[1, 8, 8, 0] = np.nan, np.inf, -np.inf
    given = (images.astype(np.float32), points.astype(np.float32), _normal(2, channels, 40, 40), mode)
    found = _gradients(*given)
    with reference_only():
        expected = _gradients(*given)
    for each, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(each), np.isfinite(other))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_huge_coordinates_are_padded_like_the_reference_s(mode, padding):
    points = _normal(2, 20, 19, 2) * np.float32(10) ** np.arange(0, 38, 2)[:, None].astype(np.float32)
    given = (_normal(2, 3, 7, 5), points, _normal(2, 3, 20, 19), mode, padding)
    found = _gradients(*given)
    with reference_only():
        expected = _gradients(*given)
    np.testing.assert_allclose(found[0], expected[0], 1e-5, 1e-5)


@pytest.mark.parametrize("channels", [3, 9])
def test_gradients_may_lie_as_they_like(channels):
    images, points = (
        _normal(2, channels, 9, 7),
        np.random.default_rng(0).uniform(-1, 1, (2, 40, 41, 2)).astype(np.float32),
    )
    for dy in (_normal(41, 40, channels, 2).T, np.broadcast_to(np.float32(2), (2, channels, 40, 41))):
        expected = _gradients(images, points, dy.copy())
        for each, other in zip(_gradients(images, points, dy), expected, strict=True):
            np.testing.assert_array_equal(each, other)


@pytest.mark.parametrize("channels", [3, 9])
def test_images_and_grids_may_lie_as_they_like(channels):
    images, points = (
        _normal(2, channels, 9, 7),
        np.random.default_rng(0).uniform(-1, 1, (2, 40, 40, 2)).astype(np.float32),
    )
    dy = _normal(2, channels, 40, 40)
    last = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    expected = _gradients(images, points, dy)
    for each, other in zip(_gradients(last, np.repeat(points, 2, 1)[:, ::2], dy), expected, strict=True):
        np.testing.assert_array_equal(each, other)


@pytest.mark.parametrize("channels", [3, 70])
def test_the_number_of_threads_changes_no_bit(channels):
    images, points, dy = _normal(3, channels, 20, 20), _normal(3, 30, 30, 2), _normal(3, channels, 30, 30)
    threads, found = get_num_threads(), []
    try:
        for count in (1, 2, 3):
            set_num_threads(count)
            found.append([a.tobytes() for a in _gradients(images, points, dy)])
    finally:
        set_num_threads(threads)
    assert found[0] == found[1] == found[2]
