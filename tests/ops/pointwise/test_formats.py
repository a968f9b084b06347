"""Codes of the formats below 16 bits: bit for bit those of ml_dtypes and PyTorch; random bits round without bias."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit.base import dtypes
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.base.formats import FORMATS, encode_reference, is_packed, values_of
from ampkit.core.dispatch import reference_only
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.ops.pointwise.formats import decode, encode

from ...bench import format_pictures
from ...peers.float8 import bits, digest

pytestmark = pytest.mark.cpu  # on a GPU: tests/kernels/cuda/test_formats.py
GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "float8.json").read_text())["sha256"]
EVERY = pytest.mark.parametrize("dtype", FORMATS, ids=lambda dtype: dtype.names[0])
FORMS = pytest.mark.parametrize("kernels", [True, False], ids=["kernel", "reference"])


def inputs(of, count=200_000):
    """All values of a 16-bit dtype; random bits of a wide one, with values around each boundary of each format."""
    if of.itemsize == 2:
        return np.arange(1 << 16, dtype=np.uint16).view(of)
    held = np.concatenate([values_of(dtype).reshape(-1) for dtype in FORMATS]).astype(float64)
    held = np.unique(held[np.isfinite(held)])
    between = np.concatenate([held, (held[1:] + held[:-1]) / 2])
    with ignore_fp_errors():
        near = np.concatenate([np.nextafter(between.astype(of), of.type(to)) for to in (-np.inf, np.inf)])
        raw = np.random.PCG64(1).random_raw(count).view(f"u{of.itemsize}")[:count]
        found = np.concatenate([between.astype(of), near, raw.view(of), -raw.view(of)])
    return found[: found.size // 2 * 2]


def nearest(values, dtype):
    """The codes of float64 values, found by comparison with the midpoints; ml_dtypes rounds them to float32 first."""
    chosen = FORMATS[dtype]
    held = np.arange(chosen.largest + 1, dtype=np.uint8).view(chosen.values).astype(float64)
    held = np.append(held, 2 * held[-1] - held[-2] if not chosen.powers_of_two else 2 * held[-1])
    middle, magnitude = (held[1:] + held[:-1]) / 2, np.abs(values)
    code = np.searchsorted(middle, magnitude)
    if chosen.powers_of_two:  # PyTorch's and ml_dtypes' choice
        middle[0] = held[0]
        code = np.searchsorted(middle, magnitude)
    tie = magnitude == middle[np.minimum(code, len(middle) - 1)]
    code += tie & ((code > 0) if chosen.powers_of_two else code % 2 == 1)
    code = np.where(code > chosen.largest, chosen.overflow, code)
    code = np.where(np.isnan(values), chosen.nan, code)
    negative = np.signbit(values) & ((code != 0) & (code != chosen.nan) if chosen.unsigned_zero else True)
    codes = np.where(negative, code ^ chosen.sign, code).astype(np.uint8)
    return codes[::2] | codes[1::2] << 4 if is_packed(dtype) else codes


def expected(values, dtype):
    """The codes of ml_dtypes, with what it leaves otherwise than PyTorch.

    That is NaN of E5M2, the sign of a power of two, and, from version 0.7 on, the side to which what is a little more
    than the smallest power of two is rounded.
    """
    chosen = FORMATS[dtype]
    if values.dtype == float64:
        return nearest(values, dtype)
    with ignore_fp_errors():
        if chosen.powers_of_two:
            values = np.abs(values)
        codes = values.astype(chosen.values).view(np.uint8)
        if dtype == dtypes.float8_e5m2:
            codes = np.where(np.isnan(values), codes | 0x7F, codes)
        if chosen.powers_of_two:
            smallest = 2.0**-127
            codes = np.where((smallest < values) & (values < 1.5 * smallest), 1, np.where(values == 0, 0, codes))
    return codes[::2] | codes[1::2] << 4 if is_packed(dtype) else codes


def encoded(kernels, *args):
    if kernels:
        return encode(*args)
    with reference_only():
        return encode(*args)


@EVERY
@FORMS
@pytest.mark.parametrize("of", [float32, float16, bfloat16, float64], ids=str)
def test_codes_are_those_of_ml_dtypes(of, kernels, dtype):
    values = inputs(of)
    np.testing.assert_array_equal(encoded(kernels, values, dtype, False, None), expected(values, dtype))


@pytest.mark.parametrize("case", GOLDEN)
def test_codes_are_those_of_pytorch(case):
    name, _, of = case.split()
    dtype = getattr(dtypes, name)
    values = bits(of).view(getattr(dtypes, of))
    assert digest(encode(values, dtype, FORMATS[dtype].saturates, None)) == GOLDEN[case]


@EVERY
@FORMS
@pytest.mark.parametrize("to", [float32, float16, bfloat16, float64], ids=str)
def test_values_are_those_of_ml_dtypes(to, kernels, dtype):
    codes = np.arange(256, dtype=np.uint8)
    byte = np.stack([codes & 15, codes >> 4], 1).reshape(-1) if is_packed(dtype) else codes
    with ignore_fp_errors():
        want = byte.view(FORMATS[dtype].values).astype(to)
    if kernels:
        found = decode(codes, dtype, to)
    else:
        with reference_only():
            found = decode(codes, dtype, to)
    assert found.dtype == to
    np.testing.assert_array_equal(found.astype(float64), want.astype(float64))
    assert (np.signbit(found) == np.signbit(want)).all()


@EVERY
@FORMS
def test_what_is_too_large_becomes_the_largest_where_it_saturates(kernels, dtype):
    chosen = FORMATS[dtype]
    largest = float(np.uint8(chosen.largest).view(chosen.values))
    values = np.array([largest, np.inf, 3.4e38, -np.inf, *[1.0] * 96], float32)
    found = decode(encoded(kernels, values, dtype, True, None), dtype, float32)
    sign = -1 if chosen.sign else 1
    np.testing.assert_array_equal(found[:4], [largest, largest, largest, sign * largest])


@EVERY
@FORMS
@pytest.mark.parametrize("of", [float32, float64, bfloat16], ids=str)
def test_random_bits_round_up_with_the_probability_of_the_fraction(of, kernels, dtype):
    positive = np.unique(values_of(dtype))
    below, above = positive[np.isfinite(positive) & (positive > 0)][[2, 3]].tolist()
    for fraction in (0.25, 0.875):
        values = np.full(1 << 17, below + fraction * (above - below), of)
        found = decode(encoded(kernels, values, dtype, True, (3, 5)), dtype, float64)
        assert set(np.unique(found)) == {below, above}
        assert abs((found == above).mean() - fraction) < 5 * np.sqrt(fraction * (1 - fraction) / found.size)


@EVERY
@FORMS
def test_what_a_format_holds_is_never_rounded(kernels, dtype):
    values = values_of(dtype).reshape(-1)
    values = np.tile(values[np.isfinite(values)], 2)
    found = decode(encoded(kernels, values, dtype, False, (3, 5)), dtype, float32)
    np.testing.assert_array_equal(found, values)


@EVERY
@pytest.mark.parametrize("of", [float32, float64, float16, bfloat16], ids=str)
def test_kernel_and_reference_draw_the_same_bits(of, dtype):
    values = inputs(of, 5000)[-20_002:]
    for saturate in (True, False):
        found = encoded(True, values, dtype, saturate, (2**64 - 1, 7))
        np.testing.assert_array_equal(found, encoded(False, values, dtype, saturate, (2**64 - 1, 7)))


@pytest.mark.parametrize("dtype", [dtypes.float8_e4m3fn, dtypes.float8_e5m2, dtypes.float4_e2m1fn_x2], ids=str)
def test_a_fraction_beyond_32_bits_rounds_up_by_the_largest_word_alone(dtype):
    for word, code in ((2**32 - 1, 1), (2**32 - 2, 0)):
        found = encode_reference(np.full(2, 1e-30, float32), dtype, True, np.full(2, word, np.uint32))
        assert found[0] & 7 == code


def test_packed_codes_without_elements_have_no_values():
    for codes, shape in ((np.empty((0, 3), np.uint8), (0, 6)), (np.empty((3, 0), np.uint8), (3, 0))):
        with reference_only():
            assert decode(codes, dtypes.float4_e2m1fn_x2, float32).shape == shape


def test_a_strided_array_is_read_in_row_major_order():
    values = np.random.default_rng(0).standard_normal((60, 50)).astype(float32)
    for given in (values.T, values[::2, ::-2], values[:, None, ::5]):
        for draw in (None, (1, 2)):
            found = encode(given, dtypes.float8_e5m2, True, draw)
            np.testing.assert_array_equal(found, encode(given.copy(), dtypes.float8_e5m2, True, draw))


def test_the_low_four_bits_hold_the_value_of_the_lower_index():
    values = np.tile(np.array([0.5, 6.0], float32), 64)
    assert set(encode(values, dtypes.float4_e2m1fn_x2, True, None)) == {0x71}
    assert ml_dtypes.float4_e2m1fn(6.0).view(np.uint8) == 7


def test_the_pictures_of_the_docs_are_those_of_the_formats():
    assert (format_pictures.DOCS / "formats-values.svg").read_text() == format_pictures.values_picture()
    ampkit.manual_seed(0)
    assert (format_pictures.DOCS / "formats-casts.svg").read_text() == format_pictures.casts_picture()
