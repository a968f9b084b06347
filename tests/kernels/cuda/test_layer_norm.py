"""layer_norm, rms_norm and group_norm on the GPU: their kernels, run by the emulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_on_cpu import emulator, launch_limits, nvrtc_compiler, occupancy
from cuda_on_cpu.entries import entries

from ampkit import Tensor, autocast, ops, optim
from ampkit.backends.cuda.launch import rows
from ampkit.backends.cuda.nvrtc import typed
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.parameter import Parameter

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
OURS = frozenset(entries("nn/layer_norm") + entries("nn/group_norm"))
TOLERANCE = {float32: 2e-6, float16: 2**-11, bfloat16: 2**-8}
DTYPES = pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
# One value; a warp's row, at once and in several goes, with ends that fit none; a block's, in registers and not.
COLS = [1, 8, 99, 264, 1000, 129, 1032, 2001, 8200]


def draw(shape, dtype, seed=0):
    return np.random.default_rng([seed, *shape]).normal(0.5, 2, shape).astype(dtype)


def norm(kind, place, arrays, dy, asked=(True, True, True)):
    """The answer of a norm and its gradients, of arrays x, weight and bias, as NumPy arrays."""
    *arrays, more = arrays
    tensors = [None if a is None else Tensor(place(a), need) for a, need in zip(arrays, asked, strict=False)]
    given = tensors if kind != "rms_norm" else tensors[:2]
    out = getattr(ops, kind)(given[0], more, *given[1:])
    points = [t for t in given if t is not None and t.requires_grad]
    gradients = grad(out, points, Tensor(place(dy.astype(out.dtype))))
    return [out.numpy(force=True), *(s.numpy(force=True) for s in gradients)]


def compare(kind, device, arrays, dy, asked=(True, True, True), slack=4):
    """The kernels against the reference in float64, of the same, rounded, values."""
    found = norm(kind, device.asarray, arrays, dy, asked)
    doubles = [a.astype(float64) if isinstance(a, np.ndarray) else a for a in arrays]
    with reference_only():
        truth = norm(kind, np.asarray, doubles, dy.astype(found[0].dtype).astype(float64), asked)
    for got, want in zip(found, truth, strict=True):
        most = TOLERANCE[got.dtype] * np.abs(want).max(initial=1) * slack
        np.testing.assert_allclose(got.astype(float64), want, rtol=TOLERANCE[got.dtype], atol=most)


@DTYPES
@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_rows_and_their_gradients_are_those_of_float64(kind, cols, dtype, device, launches):
    count = 7 if cols < 2000 else 2  # a block each, in emulation a long time
    arrays = [draw((count, cols), dtype), draw((cols,), dtype, 1), draw((cols,), dtype, 2), (cols,)]
    compare(kind, device, arrays, draw((count, cols), dtype, 3), slack=4 if cols > 1 else 40)
    assert launches[:2] == [f"{kind}_forward", f"{kind}_backward"] and launches[-1] == "norm_weight_sums"


# On both sides of what shared memory keeps: two rows and the sums for weight and bias, the sums alone, a row.
LIMITS = [
    (float32, 14464),
    (float32, 14472),
    (bfloat16, 19277),
    (float16, 19288),
    (float32, 28928),
    (float32, 28931),
    (bfloat16, 57864),
]


@pytest.mark.parametrize(("dtype", "cols"), [*LIMITS, (float32, 57864)], ids=str)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_rows_about_as_long_as_shared_memory(kind, dtype, cols, device, launches):
    arrays = [draw((2, cols), dtype), draw((cols,), dtype, 1), draw((cols,), dtype, 2), (cols,)]
    compare(kind, device, arrays, draw((2, cols), dtype, 3), slack=8)
    sums = (8 if kind == "layer_norm" else 4) * cols
    apart = [] if sums <= device.shared else ["norm_weight_backward"]
    assert launches == [f"{kind}_forward", f"{kind}_backward", *apart, "norm_weight_sums"]


def test_blocks_add_up_several_long_rows(device, monkeypatch):
    monkeypatch.setattr(rows, "MULTIPROCESSORS", 1)
    for cols in (8200, 301):
        arrays = [draw((8, cols), float32), draw((cols,), float32, 1), draw((cols,), float32, 2), cols]
        for asked in ((True, True, True), (True, True, False), (True, False, True), (True, False, False)):
            compare("layer_norm", device, arrays, draw((8, cols), float32, 3), asked)
        compare("rms_norm", device, arrays, draw((8, cols), float32, 3))


@pytest.mark.parametrize("cols", [24, 33, 1600])
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_16_bit_rows_with_float32_parameters_answer_in_float32_inside_autocast(kind, dtype, cols, device, launches):
    x = Tensor(device.asarray(draw((5, cols), dtype)), True)
    weight = Parameter(Tensor(device.asarray(draw((cols,), float32, 1))))
    with autocast("cuda", dtype=dtype):
        out = getattr(ops, kind)(x, cols, weight)
    assert out.dtype == float32
    dx, dw = grad(out, [x, weight], out.detach())
    assert (dx.dtype, dw.dtype) == (dtype, float32)
    assert launches == [f"{kind}_forward", f"{kind}_backward", "norm_weight_sums"]
    with reference_only():
        double = [Tensor(a.numpy(force=True).astype(float64), True) for a in (x, weight)]
        truth = getattr(ops, kind)(
            double[0], cols, double[1], eps=np.finfo(np.float32).eps if kind == "rms_norm" else 1e-5
        )
        wants = truth, *grad(truth, double, Tensor(out.numpy(force=True).astype(float64)))
    for got, want in zip((out, dx, dw), wants, strict=True):
        want = want.numpy(force=True)
        atol = TOLERANCE[got.dtype] * np.abs(want).max() * 4
        np.testing.assert_allclose(got.numpy(force=True).astype(float), want, TOLERANCE[got.dtype], atol)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("asked", [(True, False, False), (False, True, False), (False, True, True)], ids=str)
def test_only_the_gradients_that_are_asked_for(kind, asked, device):
    for cols in (40, 1030):
        arrays = [draw((6, cols), float32), draw((cols,), float32, 1), draw((cols,), float32, 2), cols]
        compare(kind, device, arrays, draw((6, cols), float32, 3), asked)


def test_several_axes_without_scales_and_with_one_of_them(device):
    x, dy = draw((3, 4, 5, 6), float32), draw((3, 4, 5, 6), float32, 1)
    compare("layer_norm", device, [x, None, None, (5, 6)], dy)
    compare("layer_norm", device, [x, None, draw((5, 6), float32), (5, 6)], dy)
    compare("layer_norm", device, [x, draw((4, 5, 6), float32), None, (4, 5, 6)], dy)
    compare("rms_norm", device, [x, None, None, [5, 6]], dy)
    compare("layer_norm", device, [x[0, 0, 0], draw((6,), float32), None, 6], dy[0, 0, 0])


def test_more_rows_than_blocks_share_them_out(device, monkeypatch):
    monkeypatch.setattr(rows, "MULTIPROCESSORS", 1)
    for count, cols in ((2500, 8), (2500, 3), (90, 264)):
        arrays = [draw((count, cols), float32), draw((cols,), float32, 1), draw((cols,), float32, 2), cols]
        compare("layer_norm", device, arrays, draw((count, cols), float32, 3))


@pytest.mark.skipif(nvrtc_compiler.missing() is not None, reason=nvrtc_compiler.missing() or "")
@pytest.mark.parametrize("cols", [768, 1024, 4096])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_a_multiprocessor_holds_all_blocks_that_a_backward_counts_on(cols, dtype, device):
    x = np.broadcast_to(device.asarray(np.zeros(cols, dtype)), (16384, cols))
    plan = rows.back_plan(cols, x)
    config = rows.back_grid(x, x, cols, plan, 2)
    entry = typed("layer_norm_backward", dtype, dtype, *plan)
    usage = launch_limits.resource_usage('#include "nn/layer_norm.cu"\n', entry, "sm_90")
    held = occupancy.resident(usage.registers, usage.shared + config.shared, config.threads)
    assert config.blocks <= held * rows.MULTIPROCESSORS and held * config.threads >= 30 * 32


@DTYPES
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "group_norm"])
def test_rows_that_are_not_finite_zero_or_constant_come_out_as_in_the_reference(kind, dtype, device):
    values, dy = draw((9, 32), dtype), draw((9, 32), dtype, 1)
    values[1, 3], values[2, 0], values[3, 31], values[4], values[5], values[6] = np.nan, np.inf, -np.inf, 0, 3, 1e4
    dy[7, 5], dy[8, 1] = np.nan, np.inf
    arrays = [values, np.linspace(1, 2, 32).astype(dtype), None, 1 if kind == "group_norm" else 32]
    found = norm(kind, device.asarray, arrays, dy)
    with reference_only():
        truth = norm(kind, np.asarray, arrays, dy)
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_array_equal(np.isnan(got.astype(float)), np.isnan(want.astype(float)))
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2 * TOLERANCE[dtype] + 1e-4, atol=1e-2)


def test_a_row_far_from_zero_keeps_its_digits(device):
    for cols in (64, 1000, 3000, 9000, 300 + 1):
        arrays = [draw((3, cols), float32) + np.float32(1000), None, None, cols]
        found = norm("layer_norm", device.asarray, arrays, draw((3, cols), float32, 1))
        truth = norm("layer_norm", np.asarray, [arrays[0].astype(float), *arrays[1:]], draw((3, cols), float32, 1))
        for got, want in zip(found, truth, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@DTYPES
def test_rows_that_lie_anyhow_are_the_same_rows(dtype, device):
    held = device.asarray(draw((24, 33), dtype))
    weight, dy = device.asarray(draw((25,), float32, 1)), device.asarray(draw((33, 24), dtype, 2))
    transposed, shifted, gradient = held.T, held.reshape(-1)[1:769].reshape(32, 24), dy.T.copy().T
    for x, g in ((transposed, gradient), (shifted, gradient[1:]), (held[:, ::-1][:, 9:], dy[:24])):
        for w in (weight[1:], weight[::-1][:24]):
            both = []
            for a, b, c in ((x, g, w), (x.copy(), g.copy(), w.copy())):
                point, scale = Tensor(a, True), Tensor(c.astype(dtype), True)
                out = ops.layer_norm(point, 24, scale)
                both.append(
                    [out.numpy(force=True), *(s.numpy(force=True) for s in grad(out, [point, scale], Tensor(b)))]
                )
            for got, want in zip(*both, strict=True):
                np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=4e-6, atol=4e-6)


def test_no_rows_are_left_to_the_reference(device, launches):
    compare("layer_norm", device, [draw((0, 6), float32), draw((6,), float32), None, 6], draw((0, 6), float32))
    compare("group_norm", device, [draw((0, 6, 2), float32), draw((6,), float32), None, 3], draw((0, 6, 2), float32))
    assert not launches


def test_float64_is_left_to_the_reference(device, launches):
    x = draw((3, 6), float64)
    assert ops.layer_norm(Tensor(device.asarray(x)), 6).dtype == float64
    assert not launches


GROUPS = [
    ((2, 6, 5), 3),
    ((3, 8, 4, 4), 2),
    ((2, 64, 5, 3), 4),
    ((2, 4), 2),
    ((2, 4, 33, 40), 1),
    ((2, 2, 9000), 1),
    ((1, 40, 800), 1),
]


@DTYPES
@pytest.mark.parametrize(("shape", "groups"), GROUPS, ids=str)
def test_groups_and_their_gradients_are_those_of_float64(shape, groups, dtype, device, launches):
    scales = draw(shape[1:2], dtype, 1), draw(shape[1:2], dtype, 2)
    compare("group_norm", device, [draw(shape, dtype), *scales, groups], draw(shape, dtype, 3))
    row = 2 * math.prod(shape[1:]) // groups * draw((1,), dtype).itemsize
    apart = [] if row <= device.shared else ["group_norm_channel_sums"]
    assert launches == ["group_norm_forward", *apart, "group_norm_backward", "norm_weight_sums"]
    compare("group_norm", device, [draw(shape, dtype), None, None, groups], draw(shape, dtype, 3))
    compare("group_norm", device, [draw(shape, dtype), *scales, groups], draw(shape, dtype, 3), (False, True, True))


def test_the_order_of_threads_changes_no_bit(device):
    for kind, more, shape in (
        ("layer_norm", 96, (9, 96)),
        ("rms_norm", 1032, (3, 1032)),
        ("layer_norm", 1031, (3, 1031)),
        ("group_norm", 2, (2, 6, 20)),
        ("group_norm", 2, (2, 4, 130)),
    ):
        width = shape[1]
        arrays = [draw(shape, float32), draw((width,), float32, 1), draw((width,), float32, 2), more]
        runs = []
        for order in (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED):
            with emulator.thread_order(order):
                runs.append(norm(kind, device.asarray, arrays, draw(shape, float32, 3)))
        for first, *others in zip(*runs, strict=True):
            for other in others:
                np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "group_norm"])
def test_gradients_of_parameters_are_left_where_the_optimizer_wants_them(kind, device, monkeypatch):
    weight = Parameter(Tensor(device.asarray(draw((16,), float32))))
    optimizer = optim.SGD([weight], lr=0.1)
    buffer = weight.grad_buffer
    assert buffer is not None and buffer.dtype == float32
    x = Tensor(device.asarray(draw((4, 16), float32, 1)))
    out = getattr(ops, kind)(x, 4 if kind == "group_norm" else 16, weight)
    taken = []
    monkeypatch.setattr(Parameter, "accumulate", lambda self, gradient, *rest: taken.append(gradient is buffer))
    out.sum().backward()
    assert taken == [True]
    assert optimizer.param_groups


@pytest.mark.parametrize(("kind", "more"), [("layer_norm", (24,)), ("group_norm", 4)])
@pytest.mark.parametrize("asked", [(False, False, True), (False, True, False), (True, False, False)], ids=str)
def test_each_gradient_is_computed_alone(kind, more, asked, device):
    arrays = [draw((6, 24), float32), draw((24,), float32, 1), draw((24,), float32, 2), more]
    compare(kind, device, arrays, draw((6, 24), float32, 3), asked)
