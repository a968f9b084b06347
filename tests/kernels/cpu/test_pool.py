"""Pools and interpolation agree with float64 and the reference, whatever is not finite and however images lie."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.testing import TOLERANCE, Case, assert_close, check_precision, normal

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

LARGEST = [
    Case("max_pool2d", normal(4, 16, 16, 16), 2),
    Case("max_pool2d", normal(4, 17, 15, 14), 3, 2, 1),
    Case("max_pool2d", normal(4, 16, 13, 16), (3, 2), (1, 3), (1, 0), ceil_mode=True),
    Case("max_pool2d", normal(20, 27, 27), 5, 3, return_indices=True),
    Case("max_pool2d", normal(4, 16, 16, 16), 15),
    Case("max_pool1d", normal(4, 16, 200), 4, 2, 2),
    Case("max_pool1d", normal(4, 16, 200), 5, 3, 2),
    Case("max_pool2d", normal(4, 8, 9, 61), 3, 1, 1),
    Case("max_pool2d", normal(4, 8, 9, 61), 3, 2, 1),
    Case("max_pool3d", normal(2, 16, 6, 9, 10), (2, 3, 2), (2, 2, 1), (1, 1, 0), return_indices=True),
    Case("max_pool3d", normal(16, 8, 9, 10), 3, 2, ceil_mode=True),
]
MEANS = [
    Case("avg_pool2d", normal(4, 16, 16, 16), 2),
    Case("avg_pool2d", normal(4, 17, 15, 14), 3, 2, 1),
    Case("avg_pool2d", normal(4, 17, 15, 14), 3, 2, 1, count_include_pad=False),
    Case("avg_pool2d", normal(4, 16, 13, 16), (3, 2), (2, 3), (1, 0), ceil_mode=True, count_include_pad=False),
    Case("avg_pool2d", normal(4, 16, 13, 16), 2, ceil_mode=True),
    Case("avg_pool2d", normal(20, 27, 27), 5, 3),
    Case("avg_pool1d", normal(4, 16, 200), 4, 2, 2),
    Case("avg_pool3d", normal(2, 16, 6, 9, 10), (2, 3, 2), (2, 2, 1), (1, 1, 0)),
    Case("avg_pool3d", normal(16, 8, 9, 10), 3, 2, 1, ceil_mode=True, count_include_pad=False),
    Case("adaptive_avg_pool3d", normal(2, 16, 8, 6, 9), (4, 1, 3)),
    Case("adaptive_avg_pool2d", normal(2, 8, 32, 32), 1),
    Case("adaptive_avg_pool2d", normal(8, 32, 7, 9), 1),
    Case("adaptive_avg_pool2d", normal(20, 28, 28), (7, None)),
    Case("adaptive_avg_pool1d", normal(4, 16, 200), 10),
]
OTHERS = [
    Case("max_pool2d", normal(4, 16, 16, 16), 2, dilation=2),
    Case("max_pool2d", normal(4, 16, 17, 17), 3, 1, 1, dilation=3),
    Case("max_pool2d", normal(4, 16, 17, 17), 17),  # more positions than a byte tells: left to the reference
    Case("max_pool2d", normal(64, 1, 16, 16), 2),
    Case("max_pool3d", normal(2, 16, 8, 8, 8), 7),
    Case("avg_pool2d", normal(4, 16, 16, 16), 2, divisor_override=3),
    Case("avg_pool2d", normal(4, 16, 14, 16), 3, 2, 1, ceil_mode=True),
    Case("avg_pool2d", normal(2, 3, 700, 5), (600, 2)),  # too long a sum: left to the reference
    Case("adaptive_avg_pool2d", normal(4, 16, 16, 16), 5),
    Case("adaptive_avg_pool2d", normal(2, 3, 700, 9), 1),
    Case("adaptive_avg_pool3d", normal(2, 8, 7, 9, 11), (3, 4, 5)),
]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", [*LARGEST, *MEANS, *OTHERS], ids=repr)
def test_values_and_gradients_are_those_of_float64_within_tolerance(case, dtype):
    check_precision(case, dtype)


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 5, 401), {"scale_factor": 1.7, "mode": "linear"}),
        ((3, 5, 401), {"scale_factor": 0.3}),
        ((2, 3, 33, 31), {"size": (50, 77), "mode": "bilinear"}),
        ((2, 3, 33, 31), {"size": (66, 62), "mode": "bilinear", "align_corners": True}),
        ((2, 3, 33, 31), {"size": (17, 9), "mode": "bilinear", "antialias": True}),
        ((2, 3, 33, 31), {"scale_factor": 2, "mode": "bicubic"}),
        ((2, 3, 33, 31), {"scale_factor": 2}),
        ((2, 3, 33, 31), {"size": (40, 8), "mode": "nearest-exact"}),
        ((2, 3, 9, 11, 13), {"scale_factor": 1.5, "mode": "trilinear"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("last", [False, True])
def test_interpolation_is_that_of_float64(shape, options, dtype, last):
    if last:
        values = np.random.default_rng(0).standard_normal((shape[0], *shape[2:], shape[1]))
        values = np.moveaxis(values.astype(dtype), -1, 1)
    else:
        values = np.random.default_rng(0).standard_normal(shape).astype(dtype)

    def run(values):
        x = Tensor(values, True)
        y = ampkit.nn.functional.interpolate(x, **options)
        gradients = np.random.default_rng(1).standard_normal(y.shape).astype(bfloat16).astype(y.dtype)
        return y, *grad(y, [x], Tensor(gradients))

    found, truth = run(values), run(values.astype(float))
    assert found[0].node.kernel is not found[0].node.op.forward.reference
    for got, want in zip(found, truth, strict=True):
        assert got.dtype == dtype
        assert_close(got, want, TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate"])
def test_the_number_of_threads_changes_no_bit(name):
    def run():
        x = ampkit.tensor(
            np.random.default_rng(0).standard_normal((4, 20, 30, 34)).astype(np.float32), requires_grad=True
        )
        y = ops.interpolate(x, scale_factor=1.5, mode="bicubic") if name == "interpolate" else getattr(ops, name)(x, 3)
        (y * y).sum().backward()
        return y.array.tobytes(), x.grad.array.tobytes()

    before, found = ampkit.get_num_threads(), []
    try:
        for threads in (1, 2):
            ampkit.set_num_threads(threads)
            found.append(run())
    finally:
        ampkit.set_num_threads(before)
    assert found[0] == found[1]


LAYOUTS = {
    "channels innermost": lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "columns innermost": np.ascontiguousarray,
    "batch innermost": lambda a: np.ascontiguousarray(a.transpose(1, 2, 3, 0)).transpose(3, 0, 1, 2),
    "every other": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "backwards": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "the same row": lambda a: np.broadcast_to(a[:, :, :1], a.shape),
}
POOLS = [("max_pool2d", (3, 2, 1)), ("avg_pool2d", (3, 2, 1)), ("adaptive_avg_pool2d", (4,))]


@pytest.mark.parametrize("turn", LAYOUTS)
@pytest.mark.parametrize(("name", "sizes"), POOLS)
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
def test_images_may_lie_as_they_like(name, sizes, turn, dtype):
    rng = np.random.default_rng(0)
    x = Tensor(LAYOUTS[turn](rng.integers(-3, 4, (4, 20, 12, 16)).astype(dtype)), True)  # with many equals
    pool = getattr(ops, name)

    def run():
        y = pool(x, *sizes)
        gradients = LAYOUTS[turn](np.random.default_rng(1).integers(-3, 4, y.shape).astype(dtype))
        seen = []  # by a hook: what `grad` returns has the layout of its input
        with x.register_hook(seen.append):
            y.backward(Tensor(gradients))
        return y, *seen

    found = run()
    with reference_only():
        truth = run()
    assert found[0].node.kernel is not found[0].node.op.forward.reference
    for got, want in zip(found, truth, strict=True):
        if turn == "channels innermost":
            assert got.array.transpose(0, 2, 3, 1).flags.c_contiguous
        tolerance = 0 if name == "max_pool2d" else 1e-6 if dtype == float32 else 1e-2
        np.testing.assert_allclose(got.array.astype(float), want.array.astype(float), tolerance, tolerance)


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "sizes"), POOLS)
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
def test_what_is_not_finite_comes_out_where_the_reference_has_it(name, sizes, wild, dtype):
    values, gradients = (np.random.default_rng(i).standard_normal((4, 20, 12, 16)).astype(dtype) for i in range(2))
    values[0, 0, 3, 3], values[1] = wild, (wild if wild == -np.inf else 0)

    def run(values, wild):
        x = Tensor(values, True)
        y = getattr(ops, name)(x, *sizes)
        gradient = gradients[:, :, : y.shape[2], : y.shape[3]].copy()
        gradient[0, 0, 1, 1] = wild
        return [a.array.astype(float) for a in (y, *grad(y, [x], Tensor(gradient)))]

    for given in ((values, 1), (gradients, wild), (values, wild)):
        found = run(*given)
        with reference_only():
            truth = run(*given)
        for got, want in zip(found, truth, strict=True):
            np.testing.assert_allclose(got, want, 1e-2, 1e-2)
    assert not np.isfinite(found[0]).all()


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_gradients_of_windows_that_overlap_are_rounded_once(name):
    values, gradients = (np.random.default_rng(i).standard_normal((4, 16, 16, 16)).astype(bfloat16) for i in range(2))

    def run(dtype):
        x = Tensor(values.astype(dtype), True)
        return grad(getattr(ops, name)(x, 3, 1, 1), [x], Tensor(gradients.astype(dtype)))[0]

    assert_close(run(bfloat16), run(np.dtype(float)), TOLERANCE[bfloat16])


def test_a_kernel_reads_the_taps_that_the_reference_saved_and_the_other_way_round():
    x = Tensor(np.random.default_rng(0).integers(-3, 4, (4, 16, 16, 16)).astype(np.float32), True)
    ours, index = ops.max_pool2d(x, 3, 2, 1, return_indices=True)
    with reference_only():
        theirs, truth = ops.max_pool2d(x, 3, 2, 1, return_indices=True)
        (first,) = grad(ours.sum(), [x])
    (second,) = grad(theirs.sum(), [x])
    np.testing.assert_array_equal(index.array, truth.array)
    np.testing.assert_array_equal(first.array, second.array)
    assert theirs.node.kernel is not ours.node.kernel


def test_pools_of_nothing_and_of_integers_are_left_to_the_reference():
    assert ops.max_pool2d(Tensor(np.zeros((0, 16, 40, 40), np.float32)), 2).shape == (0, 16, 20, 20)
    assert ops.adaptive_avg_pool2d(Tensor(np.zeros((40, 0, 40, 40), np.float32)), 1).shape == (40, 0, 1, 1)
    whole = Tensor(np.arange(4 * 16 * 16 * 16).reshape(4, 16, 16, 16))
    np.testing.assert_array_equal(ops.max_pool2d(whole, 2).array, whole.array[:, :, 1::2, 1::2])


@pytest.mark.parametrize("pool", [ops.max_pool2d, ops.avg_pool2d])
def test_a_stride_beyond_the_image_takes_no_memory(pool):
    x = Tensor(np.random.default_rng(0).normal(size=(4, 3, 40, 40)).astype(np.float32), requires_grad=True)
    y = pool(x, 2, stride=2**31)
    y.sum().backward()
    assert y.shape == (4, 3, 1, 1)
    assert_close(y, pool(x.detach()[..., :2, :2], 2))
    assert x.grad[..., :2, :2].sum().item() == pytest.approx(x.grad.sum().item()) == pytest.approx(12)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("in order", float32),
        ("channels last", float32),
        ("every other", float32),
        ("in order", bfloat16),
        ("channels last", bfloat16),
        ("in order", float16),
    ],
)
@pytest.mark.parametrize(("shape", "out"), [
    ((4, 8, 16, 24), (4, 3)), ((4, 8, 16, 24), (16, 1)), ((8, 16, 24), (2, 24)), ((4, 8, 200), (25,)),
    ((2, 8, 6, 8, 10), (3, 4, 1)), ((2, 8, 32, 32), (1, 1)), ((2, 8, 15, 16), (4, 4)),
    ((2, 8, 32, 34), (1, 2)), ((2, 8, 16, 20, 18), (2, 2, 1)), ((2, 8, 600), (2,)), ((8, 2, 300), (1, 1)),
])  # fmt: skip
def test_adaptive_maxima_are_those_of_the_reference(shape, out, dtype, layout):
    values = np.random.default_rng(0).integers(-3, 3, shape).astype(dtype)  # with many equal ones
    values[0, ::2, 3::7], values[-1, 1, ::3] = np.nan, -np.inf
    if layout == "channels last":
        values = np.moveaxis(np.moveaxis(values, 1, -1).copy(), -1, 1)
    if layout == "every other":
        values = np.repeat(values, 2, 0)[::2]
    pool = getattr(ops, f"adaptive_max_pool{len(out)}d")

    def pooled():
        x = Tensor(values, requires_grad=True)
        best, place = pool(x, out, return_indices=True)
        best.backward(ampkit.ones_like(best))
        return best.array, place.array, x.grad.array

    found = pooled()
    with reference_only():
        for mine, truth in zip(found, pooled(), strict=True):
            assert (mine.dtype, mine.strides) == (truth.dtype, truth.strides)
            np.testing.assert_array_equal(mine.astype(float), truth.astype(float))
