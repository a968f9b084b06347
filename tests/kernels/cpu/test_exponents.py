"""Counting by exponent: what float16, bfloat16 and FP8 lose is what their casts lose, at every limit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit.amp import exponents
from ampkit.amp.exponents import (
    count_exponents,
    count_exponents_of_segments,
    count_lost_updates,
    losses,
    lost_updates_of_segments,
)
from ampkit.backends.cpu.native import library as native
from ampkit.core.fp_errors import ignore_fp_errors

FORMATS = {"float16": np.float16, **{name: getattr(ml_dtypes, name) for name in [*exponents.FORMATS][1:]}}
DTYPES = [ampkit.float32, ampkit.bfloat16, ampkit.float16, ampkit.float64]


def around_limits(dtype, beside=1e-14):
    """Values of all magnitudes, those at the limits of every format with their neighbours, zeros, inf and NaN."""
    rng = np.random.default_rng(0)
    limits = exponents.LIMITS.astype(np.int64)[:, None] + np.arange(-2, 3)
    with ignore_fp_errors():
        near = limits.clip(0).astype(np.int32).reshape(-1).view(np.float32).astype(np.float64)
        close = near * (1 + rng.choice([-beside, 0, beside], near.size))  # which float32 does not tell apart
        wide = rng.standard_normal(4000) * 2.0 ** rng.integers(-152, 129, 4000)
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e300, -1e-300, 5e-324]
        return np.concatenate([near, -near, close, wide, special]).astype(dtype)


def counted(values):
    counts = np.zeros(exponents.SIZE, np.int64)
    count_exponents(values, counts)
    return counts


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernels", [True, False], ids=["kernel", "reference"])
@pytest.mark.parametrize("name", FORMATS)
def test_losses_are_those_of_the_formats_own_cast(name, kernels, dtype):
    # bfloat16's own cast of float64 rounds to float32 first.
    values = around_limits(dtype, beside=0.0 if name == "bfloat16" else 1e-14)
    if kernels and native.library() is None:
        pytest.skip(native.unavailable_reason())
    if kernels:
        assert count_exponents.select("cpu", values, None) is not count_exponents.reference
        counts = counted(values)
    else:
        with ampkit.reference_only():
            counts = counted(values)
    with ignore_fp_errors():
        stored = values.astype(FORMATS[name]).astype(np.float64)
    there = np.isfinite(values) & (values != 0)
    small = np.abs(stored) < float(ml_dtypes.finfo(FORMATS[name]).smallest_normal)
    truth = ~np.isfinite(stored), small & (stored != 0), stored == 0
    assert losses(counts, name) == tuple(int((there & lost).sum()) for lost in truth)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_counts_as_the_reference_for_every_layout(dtype):
    values = np.random.default_rng(1).permutation(around_limits(dtype))
    layouts = [
        values[:0], values[:1], values[:1023], values[3:], values[::2], values[::-1], values[:24].reshape(2, 3, 4).T,
        values[:4000].reshape(40, 4, 25)[:, ::2, ::3], values[:1200].reshape(2, 3, 4, 50).transpose(0, 3, 1, 2),
        values[:1200].reshape(2, 3, 4, 50)[:, ::2, 1:, ::2], np.broadcast_to(values[:7], (3, 5, 7)),
        np.broadcast_to(values[4], (300, 10)), values[0], np.tile(values, 40),
    ]  # fmt: skip
    for array in layouts:
        array = np.asarray(array)
        want = np.zeros(exponents.SIZE, np.int64)
        count_exponents.reference.run(array, want)
        np.testing.assert_array_equal(counted(array), want, str((array.shape, array.strides)))
        assert want[:256].sum() == array.size


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_segments_are_counted_as_arrays_of_their_own(dtype):
    values = np.random.default_rng(4).permutation(around_limits(dtype))
    segments = [(0, 1), (1, 1), (7, 1031), (1032, 4000)]
    counts = np.zeros((len(segments), exponents.SIZE), np.int64)
    count_exponents_of_segments(values, segments, counts)
    for (start, stop), row in zip(segments, counts, strict=True):
        np.testing.assert_array_equal(row, counted(values[start:stop]))


def test_lost_updates_of_segments_are_those_of_arrays_of_their_own():
    rng = np.random.default_rng(5)
    before = rng.standard_normal(3000).astype(np.float32)
    after = before + before * np.float32(2.0) ** rng.integers(-16, -2, 3000).astype(np.float32)
    segments = [(0, 16), (64, 2000), (2000, 3000)]
    counts, want = np.zeros((3, 3), np.int64), np.zeros((3, 3), np.int64)
    lost_updates_of_segments(before, after, segments, counts)
    for (start, stop), row in zip(segments, want, strict=True):
        count_lost_updates(before[start:stop], after[start:stop], row)
    np.testing.assert_array_equal(counts, want)
    assert (counts[:, 0] > counts[:, 2]).all() and counts[1:, 1].all()


def test_counts_by_exponent_and_the_largest_are_those_of_frexp():
    values = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    counts = counted(values)
    want = np.bincount(np.frexp(values)[1] - 1 + exponents.BIAS, minlength=256)
    np.testing.assert_array_equal(counts[:256], want)
    assert counts[exponents.LARGEST].astype(np.int32).view(np.float32) == np.abs(values).max()


def test_counts_of_several_arrays_add_up():
    one, other = np.float32([1, 2, np.nan]), np.float32([0, 3, -np.inf])
    counts = counted(one)
    count_exponents(other, counts)
    np.testing.assert_array_equal(counts, counted(np.concatenate([one, other])))


@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float64], ids=str)
def test_an_update_is_lost_where_the_16_bit_weight_stays(dtype):
    rng = np.random.default_rng(3)
    before = np.concatenate([rng.standard_normal(50_000), np.ones(2), np.zeros(3), [65504.0, np.nan]]).astype(dtype)
    update = before * 2.0 ** rng.integers(-16, -2, before.size) * rng.choice([0, 1], before.size)
    after = (before + update).astype(dtype)
    counts, reference = np.zeros(3, np.int64), np.zeros(3, np.int64)
    count_lost_updates(before, after, counts)
    count_lost_updates.reference.run(before, after, reference)
    np.testing.assert_array_equal(counts, reference)
    changed = ~(after - before == 0)
    for count, kind in zip(counts[1:], (np.float16, ml_dtypes.bfloat16), strict=True):
        weight = before.astype(kind)
        moved = (weight.astype(dtype) + (after - before)).astype(kind)
        assert count == (changed & (moved == weight)).sum()
    assert counts[0] == changed.sum() and 0 < counts[1] < counts[2] < counts[0]
