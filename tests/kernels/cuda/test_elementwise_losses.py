"""The GPU's losses of elements, against their references on the emulated GPU."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import Tensor, autocast, ops, testing
from ampkit.backends.cuda.launch import elementwise
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.base.errors import RangeError
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.fp_errors import ignore_fp_errors

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
DTYPES = [float32, float16, bfloat16]
SHAPE = (9, 37)
LOSSES = {
    "MSELoss": ops.mse_loss,
    "L1Loss": ops.l1_loss,
    "SmoothL1Loss": lambda x, t, **k: ops.smooth_l1_loss(x, t, beta=0.7, **k),
    "SmoothL1Loss, 0": lambda x, t, **k: ops.smooth_l1_loss(x, t, beta=0.0, **k),
    "HuberLoss": lambda x, t, **k: ops.huber_loss(x, t, delta=0.7, **k),
    "KLDiv": ops.kl_div,
    "KLDivOfLogs": lambda x, t, **k: ops.kl_div(x, t, log_target=True, **k),
    "BCELoss": ops.binary_cross_entropy,
    "BCEOfLogits": ops.binary_cross_entropy_with_logits,
}
ENDS = [0.0, -0.0, inf, -inf, nan, 1.0, 90.0, -90.0, 0.7, -0.7]


@pytest.fixture(autouse=True)
def launched(device, monkeypatch):
    """The entries of maps that were launched, in order."""
    names, launch = [], elementwise.launch
    monkeypatch.setattr(elementwise, "launch", lambda *args, **more: (names.append(args[1]), launch(*args, **more)))
    return names


def _pair(name, dtype, seed=0):
    draws = np.random.default_rng(seed)
    if name == "BCELoss":
        x, t = draws.uniform(0, 1, (2, *SHAPE))
        x[0, :2], t[0, :4] = (0, 1), (0, 1, 1, 0)
    else:
        x, t = draws.normal(0, 1, (2, *SHAPE))
        if name in ("KLDiv", "BCEOfLogits"):
            t = abs(t) / 4
            t[1, :3] = 0, 0, 1
    return x.astype(dtype), t.astype(dtype)


def _run(loss, arrays, device, **given):
    tensors = [Tensor(device.asarray(a), True) for a in arrays]
    with ignore_fp_errors():
        out = loss(*tensors, **given)
        seed = np.random.default_rng(3).normal(1, 0.2, out.shape).astype(out.dtype)
        gradients = grad(out, tensors, Tensor(device.asarray(seed)))
    return [out.array, *[s.array for s in gradients]]


def _agree(loss, arrays, device, **given):
    got = _run(loss, arrays, device, **given)
    with reference_only():
        wants = _run(loss, arrays, device, **given)
    for i, (mine, want) in enumerate(zip(got, wants, strict=True)):
        assert mine.dtype == want.dtype and mine.shape == want.shape
        table = testing.GRADIENT_TOLERANCE if i else testing.TOLERANCE
        testing.assert_close(mine.get(), want.get(), table[want.dtype])
    return got


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_reference(name, reduction, dtype, device, launched):
    _agree(LOSSES[name], _pair(name, dtype), device, reduction=reduction)
    entry = name.partition(",")[0]
    assert {f"elementwise_forward<{entry}>", f"elementwise_backward<{entry}>"} <= set(launched)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "BCELoss"])
def test_ends_show_where_they_show_in_the_reference(name, device):
    x, t = _pair(name, float32)
    x[2, : len(ENDS)] = ENDS
    t[3, : len(ENDS)] = ENDS
    x[4, :5] = t[4, :5] = ENDS[:5]
    _agree(LOSSES[name], (x, t), device, reduction="none")


def test_the_mean_of_a_batch_and_of_many_elements(device):
    _agree(ops.kl_div, _pair("KLDiv", float32), device, reduction="batchmean")
    many = np.random.default_rng(0).normal(size=(2, 40_000)).astype(float32)
    _agree(ops.mse_loss, many, device)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_weights_of_binary_cross_entropies(reduction, device, launched):
    draws, loss = np.random.default_rng(5), ops.binary_cross_entropy_with_logits
    for shape in ((9, 1), (37,), SHAPE):
        weight = Tensor(device.asarray(draws.uniform(0.5, 2, shape).astype(float32)))
        for given in ({"weight": weight}, {"pos_weight": weight}, {"weight": weight, "pos_weight": weight}):
            _agree(loss, _pair("BCEOfLogits", float32), device, reduction=reduction, **given)
        _agree(ops.binary_cross_entropy, _pair("BCELoss", float32), device, reduction=reduction, weight=weight)
    launched.clear()
    pair = *_pair("BCEOfLogits", float32), weight.numpy()
    _agree(lambda x, t, w: loss(x, t, w, reduction=reduction), pair, device)  # a gradient that no kernel is for
    assert "elementwise_backward<BCEOfLogits>" not in launched


def test_16_bits_meet_other_targets_inside_autocast(device, launched):
    x, t = _pair("MSELoss", float16)
    with autocast("cuda", dtype=float16):
        got = _agree(ops.mse_loss, (x, t.astype(float32)), device)
    assert [g.dtype for g in got] == [float32, float16, float32] and "elementwise_forward<MSELoss>" in launched
    there, whole = Tensor(device.asarray(x), True), Tensor(device.asarray(np.ones(SHAPE, np.int64)))
    assert grad(ops.mse_loss(there, whole), there)[0].dtype == float16


def test_arrays_may_lie_in_any_way(device):
    x, t = _pair("HuberLoss", float32)
    want = _run(LOSSES["HuberLoss"], (x, t), device)
    turned = [device.xp.ndarray(np.asarray(a.T, order="C").T) for a in (x, t)]
    tensors = [Tensor(turned[0], True), Tensor(device.asarray(t))]
    out = LOSSES["HuberLoss"](*tensors)
    np.testing.assert_allclose(out.numpy(force=True), want[0].get(), 1e-6)
    seed = Tensor(device.asarray(np.random.default_rng(3).normal(1, 0.2, ()).astype(float32)))
    np.testing.assert_allclose(grad(out, tensors[0], seed)[0].numpy(), want[1].get(), 1e-6)


def test_a_probability_out_of_range_is_told_with_its_place(device):
    x, t = _pair("BCELoss", float32)
    x[2, 5] = 1.5
    ops.binary_cross_entropy(Tensor(device.asarray(x)), Tensor(device.asarray(t)))
    with pytest.raises(RangeError, match=r"1.5 at position \(2, 5\)"):
        device.synchronize()


def test_what_no_kernel_is_for_runs_the_reference(device, launched):
    for shape, dtype in ((SHAPE, float64), ((0, 3), float32), ((), float32)):
        arrays = np.random.default_rng(1).normal(size=(2, *shape)).astype(dtype)
        _agree(ops.mse_loss, [*arrays], device, reduction="sum")
    assert "elementwise_backward<MSELoss>" in launched
