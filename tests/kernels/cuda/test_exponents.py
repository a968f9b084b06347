"""Counting by exponent and lost updates on the device: kernels with the counts of the references."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit.amp import exponents
from ampkit.amp.exponents import count_exponents, count_lost_updates
from ampkit.base.dtypes import bfloat16, float16, float32, float64, int64
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.kernels.cuda.amp import exponents as kernels

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))


def values(dtype, size):
    near = (exponents.LIMITS.astype(np.int64)[:, None] + np.arange(-1, 2)).clip(0).reshape(-1)
    rng = np.random.default_rng(size)
    with ignore_fp_errors():
        near = near.astype(np.int32).view(np.float32)
        wide = np.concatenate([near, [np.inf, np.nan, 0.0], rng.standard_normal(size)])
        return rng.permutation(wide)[:size].astype(dtype)


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, float64], ids=str)
@pytest.mark.parametrize("size", [0, 1, 5, 1000, 2999])
def test_counts_are_those_of_the_reference(device, monkeypatch, size, dtype):
    monkeypatch.setattr(kernels, "BLOCKS", 2)
    host = values(dtype, size)
    arrays = [host, host[::2], host[: size // 6 * 6].reshape(-1, 2, 3).transpose(1, 2, 0)]
    for array in arrays:
        want, counts = np.ones(exponents.SIZE, np.int64), device.zeros((exponents.SIZE,), int64)
        counts += 1
        count_exponents.reference.run(array, want)
        given = device.asarray(array)
        kernel = count_exponents.select("cuda", given, counts)
        assert (kernel is count_exponents.reference) == (dtype == float64 or array.size == 0)
        count_exponents(given, counts)
        np.testing.assert_array_equal(counts.get(), want)


@pytest.mark.parametrize("size", [1, 1000])
def test_lost_updates_are_those_of_the_reference(device, size):
    rng = np.random.default_rng(size)
    before = rng.standard_normal(size).astype(np.float32)
    after = (before * (1 + 2.0 ** -rng.integers(2, 16, size))).astype(np.float32)
    want, counts = np.zeros(3, np.int64), device.zeros((3,), int64)
    count_lost_updates.reference.run(before, after, want)
    given = device.asarray(before), device.asarray(after)
    assert count_lost_updates.select("cuda", *given, counts) is not count_lost_updates.reference
    count_lost_updates(*given, counts)
    np.testing.assert_array_equal(counts.get(), want)
