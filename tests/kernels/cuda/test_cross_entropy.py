"""cross_entropy and nll_loss over labels on the GPU: their kernels, run by the emulation."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, emulator
from cuda_on_cpu.entries import entries

from ampkit import Tensor, autocast, ops
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.base.errors import RangeError
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
OURS = frozenset(entries("loss/cross_entropy"))
TOLERANCE = {float32: 2e-6, float16: 2**-11, bfloat16: 2**-8}
DTYPES = pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
SHAPES = [(5, 4), (3, 1), (4, 8), (7, 33), (3, 1000), (2, 5003)]
OPTIONS = [
    {}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 0}, {"label_smoothing": 0.2},
    {"weight": True}, {"weight": True, "reduction": "none", "label_smoothing": 0.1},
    {"weight": True, "label_smoothing": 0.3, "ignore_index": 0},
]  # fmt: skip


def draw(shape, dtype, seed=0):
    return np.random.default_rng([seed, *shape]).normal(0, 3, shape).astype(dtype)


def labels(shape, classes, dtype=np.int64):
    drawn = np.asarray(np.random.default_rng([3, *shape]).integers(0, classes, shape), dtype)
    if drawn.size > 1 and classes > 1:
        drawn.reshape(-1)[:2] = 0, 1
    return drawn


def loss(name, place, x, target, weight=None, dy=None, **options):
    """The answer and the gradient of x, as NumPy arrays."""
    point = Tensor(place(x), True)
    scale = None if weight is None else Tensor(place(weight))
    out = getattr(ops, name)(point, Tensor(place(target)), scale, **options)
    seed = np.random.default_rng(9).normal(1, 1, out.shape).astype(out.dtype) if dy is None else dy
    gradient = grad(out, point, Tensor(place(seed.astype(out.dtype))))[0]
    return out.numpy(force=True), gradient.numpy(force=True)


def compare(name, device, x, target, weight=None, **options):
    """The kernels against the reference in float64, of the same, rounded, values."""
    found = loss(name, device.asarray, x, target, weight, **options)
    dy = np.random.default_rng(9).normal(1, 1, found[0].shape).astype(found[0].dtype)
    double = None if weight is None else weight.astype(float64)
    with reference_only():
        truth = loss(name, np.asarray, x.astype(float64), target, double, dy.astype(float64), **options)
    assert found[1].dtype == x.dtype
    for got, want in zip(found, truth, strict=True):
        tolerance = TOLERANCE[got.dtype] * max(0.1, np.abs(want).max(initial=0))
        np.testing.assert_allclose(got.astype(float64), want, rtol=2 * TOLERANCE[got.dtype], atol=2 * tolerance)
    return found


@DTYPES
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_losses_and_gradients_are_those_of_float64(shape, options, dtype, device, launches):
    options = dict(options)
    if shape[1] == 1:
        options.pop("ignore_index", None)  # the mean of nothing is a test of its own
    weight = np.linspace(0.5, 2, shape[1]).astype(dtype) if options.pop("weight", None) else None
    compare("cross_entropy", device, draw(shape, dtype), labels(shape[:1], shape[1]), weight, **options)
    last = [] if options.get("reduction") == "none" else ["cross_entropy_sum"]
    assert launches == ["cross_entropy_forward", *last, "cross_entropy_backward"]
    if "label_smoothing" in options:
        return
    launches.clear()
    log = draw(shape, dtype) - 5
    compare("nll_loss", device, log.astype(dtype), labels(shape[:1], shape[1]), weight, **options)
    assert launches == ["nll_loss_forward", *last, "nll_loss_backward"]


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int64], ids=lambda k: k.__name__)
def test_labels_of_any_integer_dtype_and_one_alone(kind, device, launches):
    compare("cross_entropy", device, draw((6, 5), float32), labels((6,), 5, kind))
    compare("cross_entropy", device, draw((5,), float32), labels((), 5, kind))
    compare("cross_entropy", device, draw((5,), float32), labels((), 5, kind), reduction="none")
    assert launches.count("cross_entropy_backward") == 3


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_16_bit_scores_give_a_float32_loss_inside_autocast_and_a_16_bit_gradient(dtype, device, launches):
    values, target = draw((5, 37), dtype), labels((5,), 37)
    x = Tensor(device.asarray(values), True)
    with autocast("cuda", dtype=dtype):
        out = ops.cross_entropy(x, Tensor(device.asarray(target)))
    assert out.dtype == float32 and out.node.kernel.name == "cross_entropy_cuda"
    gradient = grad(out, x)[0]
    assert gradient.dtype == dtype and launches[-1] == "cross_entropy_backward"
    truth = loss("cross_entropy", np.asarray, values.astype(float64), target, dy=np.ones(()))
    np.testing.assert_allclose(out.numpy(force=True), truth[0], rtol=1e-6)
    np.testing.assert_allclose(gradient.numpy(force=True).astype(float), truth[1], rtol=2 * TOLERANCE[dtype], atol=1e-4)


@DTYPES
def test_scores_that_are_not_finite_or_huge_come_out_as_in_the_reference(dtype, device):
    x = draw((9, 40), dtype)
    x[0, 3], x[1, 39], x[2], x[3, :30], x[4] = np.nan, np.inf, -np.inf, -np.inf, 3e4
    x[5, 7], x[6], x[7, 0] = 6e4, 0, -6e4
    target = np.array([3, 39, 5, 35, 2, 7, 1, 0, -100])
    for options in ({"reduction": "none"}, {"reduction": "none", "label_smoothing": 0.1}, {"reduction": "sum"}):
        found = loss("cross_entropy", device.asarray, x, target, **options)
        with reference_only():
            truth = loss("cross_entropy", np.asarray, x, target, **options)
        for got, want in zip(found, truth, strict=True):
            got, want = got.astype(float), want.astype(float)
            np.testing.assert_allclose(got, want, rtol=2 * TOLERANCE[dtype], atol=1e-5)


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("shape", [(2, 4, 3), (2, 8, 3, 5), (2, 1, 3, 2)], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_scores_of_images_have_their_classes_on_axis_1(reduction, shape, name, device, launches):
    target = labels((shape[0], *shape[2:]), shape[1])
    weight = np.linspace(0.5, 2, shape[1]).astype(np.float32)
    compare(name, device, draw(shape, float32), target, weight, reduction=reduction)
    apart = np.moveaxis(draw((shape[0], *shape[2:], shape[1]), float32), -1, 1)
    compare(name, device, apart, target, reduction=reduction)
    assert launches.count(f"{name}_backward") == 2


def test_a_batch_of_ignored_labels_has_a_nan_mean_and_no_gradient(device):
    x, target = draw((3, 6), float32), np.full((3,), -100)
    out, gradient = loss("cross_entropy", device.asarray, x, target)
    assert np.isnan(out) and not gradient.any()
    assert loss("cross_entropy", device.asarray, x, target, reduction="sum")[0] == 0


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_a_label_out_of_range_spoils_its_loss_and_is_named_later(name, device):
    for wrong in (6, -1, 10**12):
        target = np.array([0, wrong, 5])
        out, gradient = loss(name, device.asarray, draw((3, 6), float32), target, reduction="none")
        assert np.isnan(out).tolist() == [False, True, False]
        assert np.isnan(gradient).any(1).tolist() == [False, True, False]
        with pytest.raises(RangeError, match=rf"{name}: needs labels from 0 to 5 .*got {wrong} at position 1"):
            device.synchronize()


def test_the_host_does_not_wait_for_the_device(device):
    x, target = Tensor(device.asarray(draw((3, 6), float32)), True), Tensor(device.asarray(labels((3,), 6)))
    seed = Tensor(device.asarray(np.float32(1)))
    before = emulated_cupy.waits[0]
    grad(ops.cross_entropy(x, target), x, seed)
    assert emulated_cupy.waits[0] == before


@DTYPES
def test_scores_that_lie_anyhow_give_the_same(dtype, device):
    held = device.asarray(draw((41, 12), dtype))
    target = Tensor(device.asarray(labels((12,), 41)))
    for view in (held.T, held.reshape(-1)[3:447].reshape(12, 37), held.T[:, ::-1]):
        both = []
        for x in (view, view.copy()):
            point = Tensor(x, True)
            out = ops.cross_entropy(point, target if x.shape[1] == 41 else Tensor(target.array % 37))
            both.append((out.numpy(force=True), grad(out, point)[0].numpy(force=True)))
        for got, want in zip(*both, strict=True):
            np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=4e-6 + TOLERANCE[dtype], atol=1e-7)


def test_what_it_is_not_for_is_left_to_the_reference(device, launches):
    place = device.asarray
    loss("cross_entropy", place, draw((2, 4), float64), labels((2,), 4))
    loss("cross_entropy", place, draw((0, 4), float32), labels((0,), 4), reduction="sum")
    assert not launches
    weight = Tensor(place(np.linspace(1, 2, 4, dtype=np.float32)), True)
    x = Tensor(place(draw((5, 4), float32)), True)
    found = grad(ops.cross_entropy(x, Tensor(place(labels((5,), 4))), weight), [x, weight])
    with reference_only():
        twins = [Tensor(a.numpy(force=True), True) for a in (x, weight)]
        truth = grad(ops.cross_entropy(twins[0], Tensor(labels((5,), 4)), twins[1]), twins)
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_allclose(got.numpy(force=True), want.numpy(force=True), rtol=1e-5, atol=1e-6)


def test_the_order_of_threads_changes_no_bit(device):
    runs = []
    for order in (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED):
        with emulator.thread_order(order):
            found = loss(
                "cross_entropy", device.asarray, draw((300, 77), float32), labels((300,), 77), label_smoothing=0.1
            )
            logs = loss("nll_loss", device.asarray, draw((300, 7), float32), labels((300,), 7))
            runs.append([*found, *logs])
    for first, *others in zip(*runs, strict=True):
        for other in others:
            np.testing.assert_array_equal(first, other)
