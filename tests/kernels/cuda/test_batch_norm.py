"""batch_norm on the GPU: its kernels, run by the emulation."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, emulator
from cuda_on_cpu.entries import entries

from ampkit import Tensor, nn, ops, optim
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.parameter import Parameter
from ampkit.ops.nn.batch_norm import batch_norm_

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
OURS = frozenset(entries("nn/batch_norm"))
TOLERANCE = {float32: 4e-6, float16: 2**-11, bfloat16: 2**-8}
DTYPES = pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
# Channels and spots that vectors fit and that none fits, more channels than a block has, many rows, one channel.
SHAPES = [
    (7, 3),
    (40, 16),
    (9, 300),
    (5, 264),
    (4, 3, 5),
    (2, 8, 4, 4),
    (3, 5, 4, 6),
    (2, 16, 3, 3),
    (6, 1, 7),
    (2, 2, 70, 70),
]
WHOLE = ["batch_norm_moments", "batch_norm_statistics", "batch_norm_forward"]
BACK = ["batch_norm_grad_sums", "batch_norm_weight_backward", "batch_norm_backward"]


def draw(shape, dtype, seed=0):
    return np.random.default_rng([seed, *shape]).normal(0.5, 2, shape).astype(dtype)


def last(array):
    """The same values, with the channels last in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def norm(place, x, scales, statistics, dy, asked=(True, True, True), eps=1e-5, relu=False, residual=None):
    """The answer and the gradients of x, weight, bias, given statistics and the residual; the answer's tensor."""
    tensors = [None if a is None else Tensor(place(a), n) for a, n in zip((x, *scales), asked, strict=True)]
    given = [None if a is None else Tensor(place(a), statistics[0] is not None) for a in statistics]
    added = None if residual is None else Tensor(place(residual), True)
    outs = batch_norm_(*tensors, *given, added, eps, relu)
    outs = outs if isinstance(outs, tuple) else (outs,)
    points = [t for t in (*tensors, *given, added) if t is not None and t.requires_grad]
    seeds = [Tensor(place(np.asarray(d, o.dtype))) for d, o in zip(dy, outs, strict=False)]
    gradients = grad(list(outs[: len(seeds)]), points, seeds)
    return [*(o.numpy(force=True) for o in outs), *(s.numpy(force=True) for s in gradients)], outs[0]


def compare(
    device, x, scales, statistics=(None, None), asked=(True, True, True), more=(), slack=4, relu=False, residual=None
):
    """The kernels against the reference in float64, of the same, rounded, values."""
    dy = [draw(x.shape, x.dtype, 5), *more]
    found, out = norm(device.asarray, x, scales, statistics, dy, asked, relu=relu, residual=residual)
    double = [[None if a is None else a.astype(float64) for a in arrays] for arrays in (scales, statistics)]
    args = [x.astype(float64), *double, [d.astype(float64) for d in dy], asked]
    with reference_only():
        wide = None if residual is None else residual.astype(float64)
        truth, _ = norm(np.asarray, *args, relu=relu, residual=wide)
    for got, want in zip(found, truth, strict=True):
        most = TOLERANCE[got.dtype] * max(1, np.abs(want).max(initial=0)) * slack
        np.testing.assert_allclose(got.astype(float64), want, rtol=TOLERANCE[got.dtype], atol=most)
    assert out.dtype == x.dtype
    return found, out


@DTYPES
@pytest.mark.parametrize("lie", [np.asarray, last], ids=["first", "last"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_answers_statistics_and_gradients_of_a_batch_are_those_of_float64(shape, lie, dtype, device, launches):
    scales = draw(shape[1:2], float32, 1), draw(shape[1:2], float32, 2)
    found, out = compare(device, lie(draw(shape, dtype)), scales)
    assert launches == [*WHOLE, *BACK]
    assert found[1].dtype == found[2].dtype == float32
    assert out.array.strides == lie(draw(shape, dtype)).strides or shape[1] == 1


@DTYPES
@pytest.mark.parametrize("lie", [np.asarray, last], ids=["first", "last"])
@pytest.mark.parametrize("shape", [(7, 3), (2, 16, 3, 3), (2, 8, 4, 4)], ids=str)
def test_given_statistics_serve_and_have_gradients(shape, lie, dtype, device, launches):
    channels = shape[1:2]
    statistics = draw(channels, dtype, 3), np.linspace(0.5, 2, channels[0]).astype(dtype)
    compare(device, lie(draw(shape, dtype)), [draw(channels, dtype, 1), draw(channels, dtype, 2)], statistics)
    assert launches == ["batch_norm_coefficients", "batch_norm_forward", *BACK]
    compare(device, lie(draw(shape, dtype)), [None, None], statistics)


@pytest.mark.parametrize("shape", [(6, 5), (2, 8, 3, 3), (2, 3, 8, 2)], ids=str)
def test_gradients_of_the_statistics_themselves_flow_back(shape, device, launches):
    more = [draw(shape[1:2], float32, 7), draw(shape[1:2], float32, 8)]
    compare(device, draw(shape, float32), [draw(shape[1:2], float32, 1), None], more=more)
    assert launches[-1] == "batch_norm_backward"


@DTYPES
@pytest.mark.parametrize("given", [False, True], ids=["batch", "given"])
@pytest.mark.parametrize("lie", [np.asarray, last], ids=["first", "last"])
@pytest.mark.parametrize("shape", [(7, 3), (2, 16, 3, 3)], ids=str)
def test_relu_behind_it_is_the_same_as_an_op_of_its_own(shape, lie, given, dtype, device, launches):
    channels = shape[1:2]
    statistics = (draw(channels, float32, 3), np.abs(draw(channels, float32, 4))) if given else (None, None)
    x, scales = lie(draw(shape, dtype)), (draw(channels, float32, 1), draw(channels, float32, 2))
    compare(device, x, scales, statistics, relu=True)
    assert len(launches) == (5 if given else 6) and launches[-1] == "batch_norm_backward"
    found, _ = norm(device.asarray, x, scales, statistics, [draw(shape, dtype, 5)], relu=True)
    y, _ = norm(device.asarray, x, scales, statistics, [draw(shape, dtype, 5)])
    gradient = np.where(y[0] > 0, draw(shape, dtype, 5), 0)
    apart, _ = norm(device.asarray, x, scales, statistics, [gradient])
    for got, want in zip(found, [np.maximum(y[0], 0), *apart[1:]], strict=True):
        np.testing.assert_array_equal(got, want)


@DTYPES
@pytest.mark.parametrize("given", [False, True], ids=["batch", "given"])
@pytest.mark.parametrize("lie", [np.asarray, last], ids=["first", "last"])
@pytest.mark.parametrize("shape", [(7, 3), (2, 16, 3, 3), (3, 5, 8)], ids=str)
def test_a_residual_is_added_before_relu_and_has_the_gradient_that_relu_passes(
    shape, lie, given, dtype, device, launches
):
    channels = shape[1:2]
    statistics = (draw(channels, float32, 3), np.abs(draw(channels, float32, 4))) if given else (None, None)
    scales = draw(channels, float32, 1), draw(channels, float32, 2)
    x, residual = (lie(draw(shape, dtype, seed)) for seed in (0, 6))  # no sum of them is next to 0
    found, _ = compare(device, x, scales, statistics, relu=True, residual=residual)
    assert len(launches) == (5 if given else 6) and launches[-1] == "batch_norm_backward"
    np.testing.assert_array_equal(found[-1], np.where(found[0] > 0, draw(shape, dtype, 5), 0))
    found, _ = norm(device.asarray, x, scales, statistics, [x], (False,) * 3, relu=True, residual=np.asfortranarray(x))
    np.testing.assert_array_equal(found[-1], np.where(found[0] > 0, x, 0))


@pytest.mark.parametrize("relu", [False, True])
def test_nan_stays_nan_behind_relu(relu, device):
    x = draw((3, 8, 4), float32)
    x[1, 2, 3] = np.nan
    (y, *_), _ = norm(device.asarray, x, (None, None), (None, None), [x], relu=relu)
    assert np.isnan(y).any((0, 2)).tolist() == [c == 2 for c in range(8)]


@pytest.mark.parametrize("asked", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
def test_only_the_gradients_that_are_asked_for(asked, device, launches):
    scales = draw((8,), float32, 1), draw((8,), float32, 2)
    compare(device, last(draw((2, 8, 3, 5), float32)), scales, asked=asked)
    assert ("batch_norm_backward" in launches) == asked[0]


@pytest.mark.parametrize("lie", [np.asarray, last], ids=["first", "last"])
def test_a_channel_far_from_zero_keeps_its_digits(lie, device):
    x = draw((4, 8, 24, 24), float32)
    x[:, 1] += 1000
    x[:, 2] *= 1e-3
    x[:, 2] -= 30
    compare(device, lie(x), [None, None], slack=20)


@DTYPES
@pytest.mark.parametrize("lie", [np.asarray, last], ids=["first", "last"])
def test_channels_that_are_not_finite_or_constant_come_out_as_in_the_reference(lie, dtype, device):
    x = draw((3, 8, 4, 5), dtype)
    x[1, 0, 2, 2], x[0, 1, 0, 0], x[2, 2, 3, 4], x[:, 3], x[:, 4] = np.nan, np.inf, -np.inf, 0, 7
    dy = draw(x.shape, dtype, 5)
    dy[0, 5, 0, 0], dy[1, 6, 0, 0] = np.nan, np.inf
    scales = np.linspace(1, 2, 8).astype(np.float32), None
    found, _ = norm(device.asarray, lie(x), scales, (None, None), [dy])
    with reference_only():
        truth, _ = norm(np.asarray, x, scales, (None, None), [dy])
    for got, want in zip(found[3:], truth[3:], strict=True):  # infinity minus infinity, or not, as the sums run
        at = (slice(None), 6) if got.ndim > 1 else 6
        assert not np.isfinite(got[at].astype(float)).any()
        got[at] = want[at]
    for got, want in zip(found, truth, strict=True):
        got, want = got.astype(float), want.astype(float)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(got, want, rtol=2 * TOLERANCE[dtype] + 1e-5, atol=2e-3)


@DTYPES
def test_images_that_lie_anyhow_give_the_same(dtype, device):
    held = device.asarray(draw((6, 9, 10, 8), dtype))
    views = (
        held.transpose(0, 3, 1, 2),
        held.transpose(3, 2, 1, 0),
        held[:, 1:],
        held.reshape(-1)[1:4001].reshape(5, 10, 8, 10),
    )
    dy = device.asarray(draw((5, 8, 10, 10), dtype, 3))
    for x in views:
        both = []
        for a in (x, x.copy()):
            point = Tensor(a, True)
            out = ops.batch_norm(point, None, None, training=True)
            gradient = dy.reshape(-1)[: a.size].reshape(a.shape) if a.size <= dy.size else a
            both.append([out.numpy(force=True), grad(out, point, Tensor(gradient))[0].numpy(force=True)])
        for got, want in zip(*both, strict=True):
            np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-5 + TOLERANCE[dtype], atol=1e-5)


def test_nothing_and_float64_are_left_to_the_reference(device, launches):
    place = device.asarray
    given = Tensor(place(np.zeros(3, np.float32))), Tensor(place(np.ones(3, np.float32)))
    ops.batch_norm(Tensor(place(draw((0, 3, 2), float32))), *given)
    ops.batch_norm(Tensor(place(draw((4, 3, 2), float64))), None, None, training=True)
    assert not launches


def test_running_statistics_move_on_the_device_unless_the_batch_is_not_finite(device, launches):
    module, twin = (nn.BatchNorm2d(5, momentum=0.3) for _ in range(2))
    module.to("cuda"), twin.to("cpu")
    before = emulated_cupy.waits[0]
    for seed, bad in ((0, False), (1, True), (2, False)):
        x = draw((3, 5, 2, 3), float32, seed)
        if bad:
            x[0, 2, 0, 0] = np.inf
        module(Tensor(device.asarray(x)))
        twin(Tensor(x))
    assert launches.count("batch_norm_update") == 3 and emulated_cupy.waits[0] == before
    for name in ("running_mean", "running_var"):
        got, want = getattr(module, name).numpy(force=True), getattr(twin, name).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    module.eval(), twin.eval()
    np.testing.assert_allclose(
        module(Tensor(device.asarray(x))).numpy(force=True), twin(Tensor(x)).numpy(force=True), rtol=1e-5, atol=1e-6
    )


def test_gradients_of_parameters_are_left_where_the_optimizer_wants_them(device, monkeypatch):
    weight, bias = (Parameter(Tensor(device.asarray(draw((8,), float32, i)))) for i in range(2))
    optimizer = optim.SGD([weight, bias], lr=0.1)
    buffers = [id(weight.grad_buffer), id(bias.grad_buffer)]
    out = ops.batch_norm(Tensor(device.asarray(draw((4, 8), float16))), None, None, weight, bias, training=True)
    taken = []
    monkeypatch.setattr(Parameter, "accumulate", lambda self, gradient, *rest: taken.append(id(gradient)))
    out.sum().backward()
    assert taken == buffers and optimizer.param_groups


@pytest.mark.parametrize("lie", [np.asarray, last], ids=["first", "last"])
def test_the_order_of_threads_changes_no_bit(lie, device):
    for shape in ((3, 8, 9, 8), (5, 6, 33)):
        scales, runs = (draw(shape[1:2], float32, 1), draw(shape[1:2], float32, 2)), []
        for order in (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED):
            with emulator.thread_order(order):
                runs.append(
                    norm(device.asarray, lie(draw(shape, float32)), scales, (None, None), [draw(shape, float32, 5)])[0]
                )
        for first, *others in zip(*runs, strict=True):
            for other in others:
                np.testing.assert_array_equal(first, other)
