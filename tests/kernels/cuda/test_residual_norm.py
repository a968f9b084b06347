"""A residual sum and its norm on the GPU: kernels, run by the emulation."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator
from cuda_on_cpu.entries import entries

from ampkit import Tensor, autocast, manual_seed, nn, ops
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.nn.modules.fused import add_norm

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
OURS = frozenset(entries("nn/residual_norm"))
TOLERANCE = {float32: 4e-6, float16: 2**-10, bfloat16: 2**-7}
FORMS = [(float32,) * 3, (float16,) * 3, (bfloat16,) * 3]
FORMS += [(float32, low, norm) for low in (float16, bfloat16) for norm in (low, float32)]
# A warp's row, at once and in several goes, with ends that fit none; a block's, in registers and not.
COLS = [1, 8, 99, 264, 1000, 129, 1032, 8200, 20003]


def draw(shape, dtype, seed=0):
    return np.random.default_rng([seed, *shape]).normal(0.5, 2, shape).astype(dtype)


def run(place, arrays, gradients, cols, p, normed, asked=(True,) * 4):
    """Sum, norm and gradients, of arrays residual, branch, weight and bias; gradients: of sum, or None, and norm."""
    manual_seed(4)
    tensors = [None if a is None else Tensor(place(a), need) for a, need in zip(arrays, asked, strict=True)]
    if gradients[0] is None:
        outs = (ops.layer_norm_of_sum(*tensors[:2], cols, *tensors[2:], 1e-5, p),)
    else:
        outs = ops.add_layer_norm(*tensors[:2], cols, *tensors[2:], 1e-5, p, normed)
    points = [t for t in tensors if t is not None and t.requires_grad]
    seeds = [Tensor(place(s.astype(out.dtype))) for s, out in zip(gradients[-len(outs) :], outs, strict=True)]
    return [each.numpy(force=True) for each in (*outs, *grad(outs, points, seeds))]


def compare(device, forms, shape, p=0.0, alone=False, asked=(True,) * 4, factor=8):
    """The kernels against the reference in float64, of the same, rounded, values."""
    residual, branch, norm = forms
    cols = shape[-1:]
    arrays = [draw(shape, residual), draw(shape, branch, 1), draw(cols, residual, 2), draw(cols, residual, 3)]
    gradients = [None if alone else draw(shape, residual, 4), draw(shape, norm, 5)]
    found = run(device.asarray, arrays, gradients, cols, p, norm, asked)
    with reference_only():
        doubles = [a.astype(float64) for a in arrays]
        wide = [None if s is None else s.astype(float64) for s in gradients]
        truth = run(np.asarray, doubles, wide, cols, p, float64, asked)
    least = max((each.dtype for each in found), key=TOLERANCE.__getitem__)
    for got, want in zip(found, truth, strict=True):
        most = TOLERANCE[least] * np.abs(want).max(initial=1) * factor
        np.testing.assert_allclose(got.astype(float64), want, rtol=TOLERANCE[got.dtype], atol=most)
    return [each.dtype for each in found]


@pytest.mark.parametrize("forms", FORMS, ids=str)
@pytest.mark.parametrize("cols", COLS)
def test_sums_norms_and_gradients_are_those_of_float64(cols, forms, device, launches):
    residual, branch, norm = forms
    rows = 7 if cols < 2000 else 2  # a block each, in emulation a long time
    found = compare(device, forms, (rows, cols), factor=8 if cols > 1 else 100)
    assert found == [residual, norm, residual, branch, residual, residual]
    assert launches == ["add_layer_norm_forward", "add_layer_norm_backward"]


@pytest.mark.parametrize("forms", FORMS, ids=str)
@pytest.mark.parametrize("cols", [40, 33, 1032, 1031])
def test_dropout_drops_what_it_drops_on_a_cpu(cols, forms, device, launches):
    compare(device, forms, (5, cols), p=0.3)
    assert len(launches) == 2


@pytest.mark.parametrize("forms", [f for f in FORMS if f[0] == f[2]], ids=str)
def test_the_norm_alone(forms, device, launches):
    compare(device, forms, (5, 40), p=0.3, alone=True)
    compare(device, forms, (5, 3, 24), alone=True)
    assert len(launches) == 4


@pytest.mark.parametrize("cols", [40, 1031])
@pytest.mark.parametrize("asked", [(True, False, False, False), (False, True, True, False), (True, True, False, True)])
def test_only_the_gradients_that_are_asked_for(asked, cols, device, launches):
    compare(device, (float32, bfloat16, bfloat16), (6, cols), 0.5, asked=asked)
    assert len(launches) == 2


def test_more_rows_than_blocks_share_them_out(device):
    compare(device, (float32, bfloat16, bfloat16), (2500, 8), 0.5)


def test_several_axes_and_no_scales(device, launches):
    x, y = (Tensor(device.asarray(draw((3, 4, 8), float32, i))) for i in range(2))
    total, norm = ops.add_layer_norm(x, y, (4, 8))
    want = ops.layer_norm(Tensor(x.numpy(force=True) + y.numpy(force=True)), (4, 8)).numpy()
    np.testing.assert_allclose(norm.numpy(force=True), want, 1e-5, 1e-5)
    assert total.shape == norm.shape == (3, 4, 8) and launches == ["add_layer_norm_forward"]


@pytest.mark.parametrize("cols", [32, 33])
def test_what_is_not_finite_stays_so_even_where_it_is_dropped(cols, device):
    x = draw((4, cols), float32)
    x[1, 3], x[2, 0] = np.nan, np.inf
    for p in (0.0, 0.5, 1.0):
        found = run(device.asarray, [draw((4, cols), float32, 1), x, None, None], [x, x], cols, p, None)
        with reference_only():
            truth = run(np.asarray, [draw((4, cols), float32, 1), x, None, None], [x, x], cols, p, None)
        for got, want in zip(found, truth, strict=True):
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


def test_the_order_of_threads_changes_no_bit(device):
    for cols in (96, 1032, 33):
        runs = []
        for order in (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED):
            with emulator.thread_order(order):
                arrays = [draw((9, cols), float32), draw((9, cols), float32, 1), draw((cols,), float32, 2), None]
                runs.append(run(device.asarray, arrays, [draw((9, cols), float32, 3)] * 2, cols, 0.2, None))
        for first, *others in zip(*runs, strict=True):
            for other in others:
                np.testing.assert_array_equal(first, other)


def test_forms_without_a_kernel_give_what_the_others_give(device, launches):
    x, y = draw((5, 24), float32), draw((5, 24), float32, 1)
    arrays, gradients = [x, y, None, None], [x, y]
    found = run(device.asarray, arrays, gradients, 24, 0.0, bfloat16)  # a norm in 16 bits of nothing in 16 bits
    with reference_only():
        truth = run(np.asarray, arrays, gradients, 24, 0.0, bfloat16)
    assert found[1].dtype == bfloat16 and launches
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_allclose(got.astype(float), want.astype(float), 1e-2, 1e-2)
    del launches[:]
    run(device.asarray, [draw((0, 8), float32)] * 2 + [None] * 2, [draw((0, 8), float32)] * 2, 8, 0.0, None)
    run(device.asarray, [x.astype(float64), y.astype(float64), None, None], [x, y], 24, 0.0, None)
    assert not launches


def test_layers_in_autocast_train_through_the_kernels(device, launches):
    norm, head = nn.LayerNorm(16).to("cuda"), nn.Linear(16, 4).to("cuda")
    x = Tensor(device.asarray(draw((6, 16), float32)), True)
    with autocast("cuda", dtype=bfloat16):
        total, normed = add_norm(x, x.bfloat16(), nn.Dropout(0.1), norm, head)
        assert (total.dtype, normed.dtype) == (float32, bfloat16)
        (head(normed).float().sum() + total.sum()).backward()
    assert launches == ["add_layer_norm_forward", "add_layer_norm_backward"]
    assert {p.grad.dtype for p in (x, norm.weight, norm.bias)} == {np.dtype(float32)}
