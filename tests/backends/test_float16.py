"""float32 to float16 on the CPU, and back: every rounding as IEEE 754 has it."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import backends
from ampkit.backends.cpu.float16 import from_float32, to_float32
from ampkit.core.dtypes import float16, float32

HALVES = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)  # every finite value >= 0
MIDDLES = ((HALVES[:-1].astype(np.float64) + HALVES[1:]) / 2).astype(np.float32)


def expected(values):
    with np.errstate(all="ignore"):
        return values.astype(np.float16).view(np.uint16)


@pytest.mark.parametrize(
    "values",
    [
        HALVES,
        -HALVES,
        MIDDLES,
        -MIDDLES,
        np.nextafter(MIDDLES, np.float32(0)),
        np.nextafter(MIDDLES, np.float32(np.inf)),
        np.array(
            [65504, 65519.996, 65520, 1e38, np.inf, -np.inf, 0.0, -0.0, 2**-25, np.nextafter(2**-25, 1)], np.float32
        ),
    ],
    ids=["exact", "negative", "ties", "negative ties", "below ties", "above ties", "edges"],
)
def test_every_value_rounds_to_the_nearest_ties_to_even(values):
    np.testing.assert_array_equal(from_float32(values).view(np.uint16), expected(values))


def test_samples_of_all_float32_bit_patterns_round_as_numpy_rounds_them():
    values = np.arange(0, 1 << 32, 30011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    np.testing.assert_array_equal(from_float32(values).view(np.uint16), expected(values))


def test_nan_stays_nan_and_shape_and_strides_do_not_matter():
    values = np.linspace(-3, 3, 40000, dtype=np.float32).reshape(100, 400)
    values[3, 5] = np.nan
    out = backends.cpu.cast(values.T, float16)
    assert out.shape == (400, 100) and np.isnan(out[5, 3])
    np.testing.assert_array_equal(out, values.T.astype(np.float16))


def test_every_float16_widens_to_its_value():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    with np.errstate(all="ignore"):
        truth = halves.T.astype(np.float32)
    out = backends.cpu.cast(halves.T, float32)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, truth)
    assert to_float32(np.empty((0, 3), np.float16)).shape == (0, 3)


def test_axes_stay_in_memory_as_they_lie():
    wide = np.random.default_rng(0).standard_normal((3, 20, 30, 5)).astype(np.float32).transpose(0, 3, 1, 2)
    half = from_float32(wide)
    np.testing.assert_array_equal(half, wide.astype(np.float16))
    assert half.transpose(0, 2, 3, 1).flags.c_contiguous
    assert to_float32(half).strides == wide.strides
    np.testing.assert_array_equal(to_float32(half), half)
