"""Pools by oneDNN agree with float64 and with the reference, whatever is not finite and however images lie."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.backends.cpu.onednn.primitive import Call
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
OTHERS = [  # left to the reference
    Case("max_pool2d", normal(4, 16, 16, 16), 2, dilation=2),
    Case("max_pool2d", normal(4, 16, 17, 17), 17),
    Case("max_pool2d", normal(64, 1, 16, 16), 2),
    Case("avg_pool2d", normal(4, 16, 16, 16), 2, divisor_override=3),
    Case("avg_pool2d", normal(4, 16, 14, 16), 3, 2, 1, ceil_mode=True),
    Case("adaptive_avg_pool2d", normal(4, 16, 16, 16), 5),
    Case("max_pool3d", normal(2, 16, 8, 8, 8), 7),
]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", [*LARGEST, *MEANS, *OTHERS], ids=repr)
def test_values_and_gradients_are_those_of_float64_within_tolerance(case, dtype):
    check_precision(case, dtype)


@pytest.fixture
def calls(monkeypatch):
    """What oneDNN ran so far, by the name of its code."""
    ran, run = [], Call.__call__
    monkeypatch.setattr(Call, "__call__", lambda self, *arrays: (ran.append(self.implementation), run(self, *arrays)))
    return ran


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", [*LARGEST, *MEANS], ids=repr)
def test_onednn_is_what_runs_forward_and_backward(case, dtype, calls):
    out, *_ = case(*case.tensors(dtype))
    forward = len(calls)
    assert forward >= 1
    out.float().sum().backward()
    assert len(calls) >= forward + 1


@pytest.mark.parametrize("case", OTHERS, ids=repr)
def test_what_onednn_has_no_word_for_is_left_to_the_reference(case):
    (out,) = case(*case.tensors(float32))
    assert out.node.kernel is out.node.op.forward.reference


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
def test_images_may_lie_as_they_like_and_go_on_channels_last(name, sizes, turn, dtype):
    rng = np.random.default_rng(0)
    x = Tensor(LAYOUTS[turn](rng.integers(-3, 4, (4, 20, 12, 16)).astype(dtype)), True)  # with many equals
    pool = getattr(ops, name)

    def run():
        y = pool(x, *sizes)
        slopes = LAYOUTS[turn](np.random.default_rng(1).integers(-3, 4, y.shape).astype(dtype))
        seen = []  # by a hook: what `grad` returns lies as its input does
        with x.register_hook(seen.append):
            y.backward(Tensor(slopes))
        return y, *seen

    found = run()
    with reference_only():
        truth = run()
    assert found[0].node.kernel is not found[0].node.op.forward.reference
    for got, want in zip(found, truth, strict=True):
        assert got.array.transpose(0, 2, 3, 1).flags.c_contiguous
        tolerance = 0 if name == "max_pool2d" else 1e-6 if dtype == float32 else 1e-2
        np.testing.assert_allclose(got.array.astype(float), want.array.astype(float), tolerance, tolerance)


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "sizes"), POOLS)
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
def test_what_is_not_finite_comes_out_where_the_reference_has_it(name, sizes, wild, dtype):
    values, slopes = (np.random.default_rng(i).standard_normal((4, 20, 12, 16)).astype(dtype) for i in range(2))
    values[0, 0, 3, 3], values[1] = wild, (wild if wild == -np.inf else 0)

    def run(values, wild):
        x = Tensor(values, True)
        y = getattr(ops, name)(x, *sizes)
        slope = slopes[:, :, : y.shape[2], : y.shape[3]].copy()
        slope[0, 0, 1, 1] = wild
        return [a.array.astype(float) for a in (y, *grad(y, [x], Tensor(slope)))]

    for given in ((values, 1), (slopes, wild), (values, wild)):
        found = run(*given)
        with reference_only():
            truth = run(*given)
        for got, want in zip(found, truth, strict=True):
            np.testing.assert_allclose(got, want, 1e-2, 1e-2)
    assert not np.isfinite(found[0]).all()


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_gradients_of_windows_that_overlap_are_rounded_once(name):
    values, slopes = (np.random.default_rng(i).standard_normal((4, 16, 16, 16)).astype(bfloat16) for i in range(2))

    def run(dtype):
        x = Tensor(values.astype(dtype), True)
        return grad(getattr(ops, name)(x, 3, 1, 1), [x], Tensor(slopes.astype(dtype)))[0]

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
