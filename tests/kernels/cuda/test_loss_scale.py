"""Unscaling and the loss scale on the device: kernels with the values of the references."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit.amp.found_inf import unscale
from ampkit.amp.loss_scale import LARGEST, TINY, update_scale
from ampkit.base.dtypes import bool_, float32, float64, int32
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.kernels.cuda.amp import found_inf as kernels
from ampkit.optim.flat.memory import CHUNK

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))
WIDE = 4 * kernels.BLOCK  # values that a block takes at once


def gradient(device, size, off=0, bad=()):
    values = np.random.default_rng(size).standard_normal(size + off).astype(np.float32)
    for place, value in bad:
        values[off + place] = value
    buffer = device.xp.empty((size + off,), float32)
    buffer[...] = device.asarray(values)
    return buffer[off:]


@pytest.mark.parametrize("inverse", [None, 2.0**-10, 3.0])
@pytest.mark.parametrize("off", [0, 1])
@pytest.mark.parametrize(
    ("size", "bad"),
    [
        (0, ()),
        (1, ()),
        (3, [(2, np.nan)]),
        (WIDE + 1, [(WIDE, -np.inf)]),
        (3 * WIDE + 7, [(7, np.inf), (6, np.nan), (2 * WIDE, np.nan)]),
        (3 * WIDE + 7, [(2 * WIDE + 5, np.inf)]),
        (CHUNK + 5, [(CHUNK + 4, np.nan)]),
        (3 * WIDE, [(9, 3e38)]),
    ],
    ids=str,
)
def test_unscaling_finds_the_first_that_is_not_finite_then(device, size, bad, off, inverse):
    by = None if inverse is None else device.asarray(np.asarray(inverse, float32))
    want, truth = gradient(device, size, off, bad), device.xp.empty((CHUNK,), bool_)
    with ignore_fp_errors():
        first = unscale.reference.run(want, by, truth)
    for order in (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED):
        given = gradient(device, size, off, bad)
        kernel = unscale.select("cuda", given, by, None)
        assert kernel is not unscale.reference
        with emulator.thread_order(order):
            found = kernel.run(given, by, None)
        assert found.shape == () and found.dtype == np.int64
        assert found.get() == first.get()
        np.testing.assert_array_equal(given.get(), want.get())


def test_many_blocks_share_what_is_longer_than_one_round_of_them(device, monkeypatch):
    monkeypatch.setattr(kernels, "BLOCKS", 2)
    given = gradient(device, 5 * WIDE + 3, bad=[(5 * WIDE + 1, np.nan)])
    half = device.asarray(np.asarray(0.5, float32))
    want = given.get() * np.float32(0.5)
    assert unscale(given, half, None).get() == 5 * WIDE + 1
    np.testing.assert_array_equal(given.get(), want)


def test_float64_gradients_are_left_to_the_reference(device):
    assert unscale.select("cuda", device.xp.zeros((4,), float64), None, None) is unscale.reference


@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("hysteresis", [1, 3])
def test_the_scale_moves_as_the_reference_says(device, hysteresis, overflow):
    starts = itertools.product([TINY, 1.0, 65536.0, 2.0**127, LARGEST], [0, 4], [0, 1, 2, 3])
    for (start, tracker, patience), (low, high) in itertools.product(starts, [(TINY, LARGEST), (1.0, 65536.0)]):
        states = []
        for run in (update_scale.reference.run, update_scale.select("cuda").run):
            held = [np.asarray(start, float32), np.asarray(tracker, int32), np.asarray(patience, int32)]
            state = [device.asarray(h) for h in held]
            flag = device.asarray(np.asarray(overflow))
            with ignore_fp_errors():
                run(*state, flag, 2.0, 0.5, 5, hysteresis, low, high)
            states.append([s.get().item() for s in state])
        assert states[0] == states[1], (start, tracker, patience, low, high)
