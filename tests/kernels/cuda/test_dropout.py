"""dropout on the GPU: its kernels, run by the emulation, with the bits of the CPU's masks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, emulator
from cuda_on_cpu.entries import entries

from ampkit import Tensor, manual_seed, ops
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core import random
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.ops.nn.dropout import dropout_

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
OURS = frozenset(entries("nn/dropout"))
DTYPES = pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
DRAWS = [(0.5, 0, 0), (0.1, 7, 3), (0.9, 2**64 - 1, 2**40 + 1), (1e-6, 5, 1), (1.0, 5, 2)]


def draw(shape, dtype, seed=0):
    return np.random.default_rng([seed, *shape]).normal(0.5, 2, shape).astype(dtype)


def drop(place, x, dy, p, seed, call, shape=None):
    """The answer, the gradient and the mask, as NumPy arrays."""
    point = Tensor(place(x), True)
    out = dropout_(point, p, seed, call, shape)
    keep = out.node.saved.keep
    gradient = grad(out, point, Tensor(place(dy)))[0]
    return out.numpy(force=True), gradient.numpy(force=True), keep if isinstance(keep, np.ndarray) else keep.get()


def compare(device, x, dy, *draw):
    """Bit for bit what the reference gives."""
    found = drop(device.asarray, x, dy, *draw)
    with reference_only():
        truth = drop(np.asarray, x, dy, *draw)
    for got, want in zip(found, truth, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got.astype(float64), want.astype(float64))
    np.testing.assert_array_equal(found[2], random.keep_mask(draw[1], draw[2], draw[0], truth[2].shape))


@DTYPES
@pytest.mark.parametrize("shape", [(1,), (5, 3), (16, 9), (4097,), (3, 7, 11), (70, 256)], ids=str)
@pytest.mark.parametrize("draws", DRAWS, ids=str)
def test_masks_answers_and_gradients_have_the_bits_of_the_reference(draws, shape, dtype, device, launches):
    compare(device, draw(shape, dtype), draw(shape, dtype, 1), *draws)
    assert launches == ["dropout_forward", "dropout_backward"]


@DTYPES
@pytest.mark.parametrize("name", ["dropout1d", "dropout2d", "dropout3d"])
def test_whole_channels_are_dropped_as_on_a_cpu(name, dtype, device, launches):
    x = draw((3, 5, 2, 3, 4)[: 2 + int(name[-2])], dtype)
    outs = []
    for place in (device.asarray, np.asarray):
        manual_seed(3)
        point = Tensor(place(x), True)
        out = getattr(ops, name)(point, 0.4)
        outs.append([out.numpy(force=True), grad(out, point, out.detach())[0].numpy(force=True)])
    for got, want in zip(*outs, strict=True):
        np.testing.assert_array_equal(got, want)
    assert launches == ["dropout_mask", "dropout_backward", "dropout_backward"]


@DTYPES
def test_nan_and_infinity_stay(dtype, device):
    x = draw((20, 20), dtype)
    x[:5], x[5:8], x[8:9], x[9:10] = np.nan, np.inf, -np.inf, 6e4
    with np.errstate(all="ignore"):
        compare(device, x, x[::-1].copy(), 0.5, 1, 2)


@DTYPES
def test_arrays_that_lie_anyhow_give_the_same(dtype, device):
    held = device.asarray(draw((34, 33), dtype))
    dy = device.asarray(draw((33, 34), dtype, 1))
    for x, gradient in (
        (held.T, dy),
        (held.reshape(-1)[1:1089].reshape(32, 34), dy[1:]),
        (held[::2, 1:], dy.T[:17, 1:]),
    ):
        twins = x.copy().get(), gradient.copy().get()
        found = drop(lambda a: a, x, gradient, 0.3, 5, 6)
        truth = drop(np.asarray, *twins, 0.3, 5, 6)
        for got, want in zip(found, truth, strict=True):
            np.testing.assert_array_equal(got, want)


def test_nothing_and_float64_are_left_to_the_reference_whose_mask_is_drawn_on_the_device(device, launches):
    for x in (draw((0, 5), float32), draw((3, 5), float64)):
        compare(device, x, x, 0.5, 1, 2)
    assert launches == ["dropout_mask"]


def test_a_recorded_step_draws_from_where_the_launch_says(device):
    x = draw((5, 33), float32)
    draws = device.asarray(np.array([11, 40], np.uint64))
    device.recording = SimpleNamespace(seed=11, first=7, draws=draws, keep=lambda arrays: None)
    point = Tensor(device.asarray(x))
    found = [dropout_(point, 0.5, seed, call).numpy(force=True) for seed, call in ((11, 7), (11, 9), (12, 9))]
    wants = [dropout_(Tensor(x), 0.5, seed, call).numpy() for seed, call in ((11, 40), (11, 42), (12, 9))]
    np.testing.assert_array_equal(found, wants)


def test_the_host_does_not_wait_for_the_device(device):
    x = Tensor(device.asarray(draw((5, 33), float32)), True)
    before = emulated_cupy.waits[0]
    grad(ops.dropout(x, 0.5), x, x.detach())
    assert emulated_cupy.waits[0] == before


def test_the_order_of_threads_changes_no_bit(device):
    runs = []
    for order in (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED):
        with emulator.thread_order(order):
            runs.append(drop(device.asarray, draw((70, 70), float16), draw((70, 70), float16, 1), 0.5, 1, 2))
            runs[-1] += drop(device.asarray, draw((70, 70), float16), draw((70, 70), float16, 1), 0.5, 1, 2, (70, 1))
    for first, *others in zip(*runs, strict=True):
        for other in others:
            np.testing.assert_array_equal(first, other)
