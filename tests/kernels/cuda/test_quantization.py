"""Quantized matrices on the GPU: kernels, run by the emulation, with the codes and scales of the reference on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

import ampkit
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core import random
from ampkit.core.policy.recipe import E2M1, E4M3, E5M2, INT8, RECIPES, Quantization
from ampkit.ops.linalg.quantization import (
    Quantized,
    dequantize,
    dequantize_,
    dequantize_reference,
    quantize_,
    quantize_both,
    quantize_reference,
    scaled_mm,
    scaled_mm_,
)

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))

PRODUCTS = ("forward", "input_gradient", "weight_gradient")
PAIRS = sorted({pair for each in RECIPES.values() for name in PRODUCTS if (pair := getattr(each, name))}, key=repr)
PRESETS = sorted({how for pair in PAIRS for how in pair}, key=repr)
MORE = [
    Quantization(E5M2, (1, 64), "float8_e8m0fnu", stochastic=True), Quantization(E2M1, (None, None)),
    Quantization(E4M3, (64, 16), stochastic=True), Quantization(INT8, (None, None)), Quantization(INT8, (128, 32)),
    Quantization(E5M2, (1, 32), "float8_e4m3fn", hadamard=True), Quantization(E4M3, (1, None), hadamard=True),
]  # fmt: skip
WAYS = [*PRESETS, *MORE]
SHAPES = [(1, 1), (3, 5), (37, 131), (200, 300)]
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-44, 3e38, -1e-30]
DRAW = (7, 3)


def matrix(shape, seed=0):
    """Values of many magnitudes, with blocks of zeros."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(shape) * np.exp2(rng.integers(-20, 12, (shape[0], 1)) + rng.integers(-5, 5, shape))
    found[shape[0] // 3 : shape[0] // 2, : shape[1] // 2] = 0
    return found.astype(float32)


def views(values):
    """The matrix with its rows, its columns and neither contiguous, and with rows off 16 bytes."""
    wide, odd = np.zeros((values.shape[0], 2 * values.shape[1]), values.dtype), np.zeros(values.size + 1, values.dtype)
    wide[:, ::2], odd[1:] = values, values.reshape(-1)
    return values, np.asfortranarray(values), wide[:, ::2], odd[1:].reshape(values.shape)


def scale_for(how):
    return np.float32(3.7).reshape(1, 1) if how.delayed else None


def given(device, array):
    return None if array is None else device.asarray(array)


def equal(found, truth):
    for got, want in zip(found, truth, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            got = got.get()
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            bits = [np.ascontiguousarray(each).view(np.uint8) for each in (got, want)]
            np.testing.assert_array_equal(*bits)


def check(device, values, how, scale=None):
    """The kernel's codes, scales, factor and largest magnitude, against the reference's on a CPU."""
    array, draw = device.asarray(values), DRAW if how.stochastic else None
    scale_there = given(device, scale)
    assert quantize_.select("cuda", array, how, scale_there, draw).name == "quantize_cuda"
    with np.errstate(all="ignore"):
        truth = quantize_reference(values, how, scale, draw)
    equal(quantize_(array, how, scale_there, draw), truth)


@pytest.mark.parametrize("how", WAYS, ids=repr)
def test_codes_and_scales_are_those_of_the_reference(device, how):
    for shape in SHAPES:
        for values in views(matrix(shape)):
            check(device, values, how, scale_for(how))


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
def test_16_bit_values_are_read_as_they_are_stored(device, dtype):
    for how in WAYS:
        for values in views(np.clip(matrix((37, 136)), -6e4, 6e4).astype(dtype)):
            check(device, values, how, scale_for(how))


@pytest.mark.parametrize("special", SPECIAL, ids=str)
def test_values_that_are_special_get_the_codes_of_the_reference(device, special):
    for how in WAYS:
        for values in (np.full((3, 40), special, float32), matrix((20, 70)), matrix((20, 70)) * np.float32(1e-39)):
            values[2, 35] = special
            check(device, values, how, scale_for(how))


@pytest.mark.parametrize("format", [E4M3, E5M2, E2M1, INT8])
def test_every_code_boundary_is_rounded_as_the_reference_does(device, format):
    steps = np.concatenate([np.arange(512), np.arange(512) + 2.0**-14]) / 16
    values = np.ldexp(steps, np.arange(-30, 20)[:, None]).astype(float32)
    how = Quantization(format) if format == INT8 else Quantization(format, delayed=True)
    for signed in (values, -values):
        check(device, signed, how, None if format == INT8 else np.float32(1).reshape(1, 1))


def test_random_bits_round_up_the_smallest_number_where_they_are_all_zero(device):
    how = Quantization(E4M3, delayed=True, stochastic=True)
    shape = (256, 1024)
    assert (random.random_bits(*DRAW, 256 * 1024) == 0).any()
    for value in (1e-40, -1e-45, 3e-39):
        check(device, np.full(shape, value, float32), how, np.float32(1).reshape(1, 1))


TURNED = sorted(
    {
        (first, second)
        for r in RECIPES.values()
        for one, at, other, to in (("forward", 0, "weight_gradient", 1), ("forward", 1, "input_gradient", 1),
                                   ("input_gradient", 0, "weight_gradient", 0))
        if getattr(r, one) and getattr(r, other)
        for first, second in [(getattr(r, one)[at], getattr(r, other)[to])]
    },
    key=repr,
)  # fmt: skip


@pytest.mark.parametrize(("first", "second"), TURNED, ids=lambda how: how.in_words)
def test_one_reading_gives_the_codes_of_a_matrix_and_of_its_transpose(device, first, second):
    scale = scale_for(first)
    for values in (*views(matrix((37, 131))), matrix((160, 260)).astype(bfloat16)):
        ampkit.manual_seed(3)
        both = quantize_both(device.asarray(values), first, second, given(device, scale))
        if first.epsilon != second.epsilon or first.format != second.format:
            assert both is None
            continue
        ampkit.manual_seed(3)
        draws = [random.default.take() if how.stochastic else None for how in (first, second)]
        want = quantize_reference(values, first, scale, draws[0])
        turned = quantize_reference(values.T, second, scale, draws[1])
        equal((both[0].codes, both[0].scales, both[0].factor, both[2]), want)
        equal((both[1].codes, both[1].scales, both[1].factor), turned[:3])
        assert both[1].codes.flags.c_contiguous


def on_host(quantized):
    parts = [None if part is None else part.get() for part in (quantized.codes, quantized.scales, quantized.factor)]
    return Quantized(*parts, quantized.shape, quantized.how)


def quantized(device, values, how):
    parts = quantize_(device.asarray(values), how, given(device, scale_for(how)), DRAW if how.stochastic else None)[:3]
    columns = values.shape[1] + (-values.shape[1] % 16) * how.hadamard
    return Quantized(*parts, (values.shape[0], columns), how)


@pytest.mark.parametrize("how", [*WAYS, Quantization(E4M3, (2, 3)), Quantization(E5M2, (None, 700))], ids=repr)
def test_dequantized_values_are_those_of_the_reference(device, how):
    for shape in SHAPES:
        for values in (matrix(shape), matrix(shape[::-1]).T, matrix(shape) * np.float32(1e-38)):
            there = quantized(device, values, how)
            for each in (there, there.transposed) if how.symmetric and how.format != E2M1 else (there,):
                assert dequantize_.select("cuda", each.codes, each).name == "dequantize_cuda"
                host = on_host(each)
                np.testing.assert_array_equal(dequantize(each).get(), dequantize_reference(host.codes, host))


def check_product(a, b, dtype, bias=None):
    """Within what float32 sums and one rounding allow, of the exact product of the dequantized operands."""
    assert scaled_mm_.select("cuda", a.codes, a, b, dtype, bias).name == "scaled_mm_cuda"
    found = scaled_mm(a, b, dtype, bias)
    left, right = [dequantize_reference(each.codes, each).astype(float) for each in map(on_host, (a, b))]
    added = 0 if bias is None else bias.get().astype(float)
    truth, size = left @ right.T + added, np.abs(left) @ np.abs(right).T + np.abs(added)
    assert found.dtype == dtype
    unit = 2.0**-8 if dtype == bfloat16 else 2.0**-24
    bound = unit * np.abs(truth) + 2.0**-20 * size + 1e-37
    values = found.get().astype(float)
    np.testing.assert_array_equal(np.isnan(values), np.isnan(truth))
    assert (np.abs(values - truth) <= bound)[~np.isnan(truth)].all()
    return found


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda how: how.in_words)
def test_products_are_within_float32_accumulation(device, first, second):
    x, y = matrix((70, 208)), matrix((48, 208), 1)
    for a in views(x)[:2]:
        check_product(quantized(device, a, first), quantized(device, y, second), float32)
    a, b = quantized(device, x[:, :200], first), quantized(device, y[:, :200], second)
    for dtype in (bfloat16, float32):
        for bias in (float32, dtype):
            check_product(a, b, dtype, device.asarray(matrix((1, 48), 2)[0].astype(bias)))


def test_products_of_scales_that_are_no_powers_of_two_stay_right(device):
    for block in ((1, 32), (64, 64)):
        how = Quantization(E4M3, block)
        check_product(*(quantized(device, matrix((40, 64), seed), how) for seed in range(2)), float32)


def test_a_block_that_is_not_finite_gives_nan(device):
    for pair in PAIRS:
        x, y = matrix((70, 208)), matrix((48, 208), 1)
        x[3, 5] = np.inf
        found = check_product(*(quantized(device, v, how) for v, how in zip((x, y), pair, strict=True)), float32)
        assert np.isnan(found.get()[3]).all()
