"""grid_sample by compiled kernels: values and gradients are those of float64; what is not finite, of the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.testing import Case, check_precision, normal, uniform

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

IMAGES, GRID = normal(3, 5, 9, 11), uniform(-1.3, 1.3, 3, 27, 31, 2)
CASES = [
    Case("grid_sample", IMAGES, GRID),
    Case("grid_sample", IMAGES, GRID, align_corners=True),
    Case("grid_sample", IMAGES, GRID, "bilinear", "border"),
    Case("grid_sample", IMAGES, GRID, "bilinear", "reflection"),
    Case("grid_sample", IMAGES, GRID, "nearest", "reflection"),
    Case("grid_sample", IMAGES, GRID, "bicubic"),
    Case("grid_sample", IMAGES, GRID, "bicubic", "border", True),
    Case("grid_sample", normal(1, 1, 12, 1), uniform(-1.3, 1.3, 1, 70, 60, 2)),
    Case("grid_sample", normal(2, 3, 4, 5, 6), uniform(-1.3, 1.3, 2, 10, 11, 13, 3)),
]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_values_and_gradients_are_those_of_float64_within_tolerance(case, dtype):
    (out,) = case(*case.tensors(dtype))
    assert out.node.kernel.name == "grid_sample_cpu"
    check_precision(case, dtype)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_what_is_not_finite_comes_out_where_the_reference_has_it(mode):
    rng = np.random.default_rng(0)
    images, points = rng.standard_normal((2, 3, 8, 8)), rng.uniform(-1.5, 1.5, (2, 40, 40, 2))
    images[0, 0, 0, 0], images[1, 1, 5, 5], images[0, 2, 3, 3] = np.inf, np.nan, -np.inf
    points[0, 3, 4, 0], points[1, 7, 7, 1] = np.nan, np.inf
    gradient = Tensor(rng.standard_normal((2, 3, 40, 40)).astype(np.float32))

    def run():
        x, grid = (Tensor(array.astype(np.float32), requires_grad=True) for array in (images, points))
        y = ops.grid_sample(x, grid, mode)
        return y, *grad(y, [x, grid], gradient)

    found = run()
    with reference_only():
        expected = run()
    for each, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(each.numpy(force=True)), np.isfinite(other.numpy(force=True)))


def test_images_and_grids_may_lie_as_they_like():
    rng = np.random.default_rng(0)
    images, points = rng.standard_normal((2, 4, 9, 7)).astype(np.float32), rng.uniform(-1, 1, (2, 40, 40, 2))

    def run(x, grid):
        x, grid = Tensor(x, requires_grad=True), Tensor(grid, requires_grad=True)
        y = ops.grid_sample(x, grid)
        return [each.numpy(force=True) for each in (y, *grad(y.sum(), [x, grid]))]

    points = points.astype(np.float32)
    expected = run(images, points)
    found = run(
        np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), np.repeat(points, 2, 1)[:, ::2]
    )
    for each, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each, other)
