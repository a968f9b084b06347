"""ctc_loss on the GPU: its kernels, run by the emulation, against the reference in float64."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, emulator
from cuda_on_cpu.entries import entries

from ampkit import Tensor, ops
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.base.errors import RangeError
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.kernels.cuda.loss import ctc

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
OURS = frozenset(entries("loss/ctc"))
TOLERANCE = {float32: 4e-6, float16: 2**-11, bfloat16: 2**-8}
RNG = np.random.default_rng(0)
LABELS = np.array([[1, 2, 2, 1], [3, 3, 3, 0], [2, 1, 4, 2]])


def log_probs(frames=9, batch=3, classes=5, dtype=float32):
    scores = np.random.default_rng(frames).normal(0, 2, (frames, batch, classes))
    return (scores - np.log(np.exp(scores).sum(2, keepdims=True))).astype(dtype)


def loss(place, x, targets, lengths, counts, dy=None, **options):
    """The answer and the gradient of x, as NumPy arrays."""
    point = Tensor(place(x), True)
    given = (Tensor(place(np.asarray(a))) for a in (targets, lengths, counts))
    out = ops.ctc_loss(point, *given, **options)
    seed = np.random.default_rng(9).normal(1, 1, out.shape) if dy is None else dy
    gradient = grad(out, point, Tensor(place(np.asarray(seed).astype(out.dtype))))[0]
    return out.numpy(force=True), gradient.numpy(force=True)


def compare(device, x, targets, lengths, counts, **options):
    """The kernels against the reference in float64, of the same, rounded, values."""
    found = loss(device.asarray, x, targets, lengths, counts, **options)
    dy = np.random.default_rng(9).normal(1, 1, found[0].shape).astype(found[0].dtype)
    with reference_only():
        truth = loss(np.asarray, x.astype(float64), targets, lengths, counts, dy.astype(float64), **options)
    # A gradient is the exp of logarithms as large as the losses: the last place of these is its relative error.
    largest = np.abs(np.nan_to_num(truth[0], posinf=0)).max()
    for got, want in zip(found, truth, strict=True):
        tolerance = 2 * TOLERANCE[got.dtype] + largest * 2**-23
        np.testing.assert_allclose(
            got.astype(float64), want, rtol=tolerance, atol=tolerance * np.nanmax(np.abs(truth[1]))
        )
    assert found[1].dtype == x.dtype


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_values_and_gradients_are_those_of_the_reference(dtype, reduction, device, launches):
    x = log_probs(dtype=dtype)
    compare(device, x, LABELS, [9, 8, 7], [4, 3, 2], reduction=reduction)
    compare(device, x, [1, 2, 2, 1, 3, 2], [9, 0, 9], [4, 0, 2], reduction=reduction)
    assert launches == ["ctc_loss_forward", "ctc_loss_backward"] * 2


@pytest.mark.parametrize("zero", [False, True])
def test_a_target_that_does_not_fit_its_frames_costs_infinity_or_nothing(zero, device, launches):
    x = log_probs()
    x[:, 0, 2] = -np.inf  # a class that the first sequence needs, and never says
    counts, lengths = [4, 3, 2], [9, 4, 7]  # of the second, three equal labels need five frames
    compare(device, x, LABELS, lengths, counts, reduction="none", zero_infinity=zero)
    out, gradient = loss(device.asarray, x, LABELS, lengths, counts, reduction="none", zero_infinity=zero)
    assert np.array_equal(np.isinf(out), [not zero] * 2 + [False])
    assert np.isfinite(gradient[:, 2]).all() and np.isfinite(gradient).all() == zero
    assert len(launches) == 4


def test_more_states_than_threads_and_classes_than_labels(device, launches, monkeypatch):
    compare(device, log_probs(8, 2, 40), RNG.integers(1, 40, (2, 3)), [8, 8], [3, 2])
    monkeypatch.setattr(ctc, "_threads", lambda states: 32)
    compare(device, log_probs(50, 2, 4), RNG.integers(1, 4, (2, 40)), [50, 45], [30, 26], reduction="sum")
    assert len(launches) == 4


def test_what_it_is_not_for_is_left_to_the_reference(device, launches, monkeypatch):
    loss(device.asarray, log_probs(dtype=float64), LABELS, [9, 8, 7], [4, 3, 2])
    monkeypatch.setattr(ctc, "SHARED", 100)
    loss(device.asarray, log_probs(), LABELS, [9, 8, 7], [4, 3, 2])
    assert not launches


def test_a_label_that_is_none_spoils_its_loss_and_is_named_later(device):
    for wrong in (5, -3, 0):
        labels = LABELS.copy()
        labels[2, 0] = wrong
        out, gradient = loss(device.asarray, log_probs(), labels, [9, 8, 7], [4, 3, 2], reduction="none")
        assert np.isnan(out).tolist() == [False, False, True]
        assert np.isnan(gradient).any((0, 2)).tolist() == [False, False, True]
        with pytest.raises(RangeError, match=rf"ctc_loss: needs labels from 0 to 4 .*got {wrong} at position \(2, 0\)"):
            device.synchronize()


def test_a_length_out_of_range_reads_nothing_beyond_the_end(device, launches, monkeypatch):
    monkeypatch.setattr(device, "call_when_ready", lambda arrays, then: None)  # before it is looked at
    for lengths, counts in (([9, 10**6, 7], [4, 3, 2]), ([9, 8, 7], [4, 3, 10**6]), ([-5, 8, 7], [4, 3, 2])):
        out, gradient = loss(device.asarray, log_probs(), LABELS.clip(1), lengths, counts, reduction="none")
        assert out.shape == (3,) and gradient.shape == (9, 3, 5)
    assert len(launches) == 6


def test_the_host_does_not_wait_for_the_device(device):
    x, given = Tensor(device.asarray(log_probs()), True), (LABELS.clip(1), [9, 8, 7], [4, 3, 2])
    given, seed = [Tensor(device.asarray(np.asarray(a))) for a in given], Tensor(device.asarray(np.float32(1)))
    before = emulated_cupy.waits[0]
    grad(ops.ctc_loss(x, *given), x, seed)
    grad(ops.ctc_loss(x, given[0].reshape(-1)[:9], *given[1:]), x, seed)
    with reference_only():
        grad(ops.ctc_loss(x, *given), x, seed)
    assert emulated_cupy.waits[0] == before


def test_the_order_of_threads_changes_no_bit(device):
    x, runs = log_probs(40, 3, 5), []
    for order in (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED):
        with emulator.thread_order(order):
            runs.append(loss(device.asarray, x, np.tile(LABELS[:, :3], 5), [40, 38, 30], [15, 11, 14]))
    for first, *others in zip(*runs, strict=True):
        for other in others:
            np.testing.assert_array_equal(first, other)
