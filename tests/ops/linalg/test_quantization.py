"""Codes and scales of every recipe, bit for bit against its formulas block by block; products against float64.

The formulas are those of the papers and specifications that the recipes name: Transformer Engine's for scales of whole
matrices and of 128 values (DeepSeek-V3, arXiv:2412.19437, 3.3), OCP Microscaling Formats 1.0 with scales rounded up,
arXiv:2509.25149, appendix C, for NVFP4, torchao's for rows. Casts are those of ml_dtypes.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit import backends, tensor
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core import random as streams
from ampkit.core.policy.recipe import E2M1, E4M3, E5M2, INT8, LARGEST, RECIPES, Quantization
from ampkit.ops.linalg.quantization import Quantized, dequantize, quantize, scaled_mm, undo_hadamard, unpacked

F32 = np.float32
SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1])


def ways():
    """Each way in which an operand of a preset is quantized, once."""
    found = {}
    for recipe in RECIPES.values():
        for product in (recipe.forward, recipe.input_gradient, recipe.weight_gradient):
            for how in product or ():
                found.setdefault(how, recipe.name)
    return list(found)


def name_of(how):
    words = [word for word in ("delayed", "stochastic", "hadamard") if getattr(how, word)]
    return " ".join([how.format, "x".join(map(str, how.block)), how.scale, *words])


WAYS = pytest.mark.parametrize("how", ways(), ids=name_of)
NEAREST = pytest.mark.parametrize("how", [how for how in ways() if not how.stochastic], ids=name_of)


@pytest.fixture(autouse=True)
def on_its_device():
    """Primitives run on the current device, and these tests call them as an op does: on that of the arrays."""
    with backends.device_guard(tensor(0.0).array):
        yield


def on_device(values):
    return tensor(values).array


def host(array):
    return None if array is None else backends.backend_of(array).to_numpy(array)


def matrices(hadamard=False):
    """Of each kind of magnitude one, with extents that no block divides."""
    random = np.random.default_rng(3)
    normal = random.standard_normal((35, 277))
    spread = normal * np.exp2(random.uniform(-40, 40, normal.shape))
    zeros = np.where(np.arange(277) % 64 < 32, 0, normal)
    found = {"normal": normal, "tiny": normal * 2.0**-140, "huge": normal * 2.0**124, "half 0": zeros}
    found |= {"0": normal * 0, "one": normal[:1, :1], "a column": normal[:, :1], "a row": normal[:1], "spread": spread}
    found["ties"] = np.rint(normal * 16) / 16
    if hadamard:  # as few bits as let any order of a sum be exact
        del found["spread"], found["tiny"], found["0"]  # whose zeros have signs, which a sum may lose
        steps = {kind: 2.0 ** (np.frexp(np.abs(values).max())[1] - 10) for kind, values in found.items()}
        found = {kind: np.rint(values / steps[kind]) * steps[kind] for kind, values in found.items()}
    return {kind: values.astype(F32) for kind, values in found.items()}


# the formulas


def transformed(values):
    """The Hadamard transform with signs of each 16 neighbours, in float64."""
    sylvester = np.ones((1, 1))
    while len(sylvester) < 16:
        sylvester = np.kron([[1, 1], [1, -1]], sylvester)
    padded = np.pad(values.astype(np.float64), ((0, 0), (0, -values.shape[1] % 16)))
    blocks = padded.reshape(len(padded), -1, 16) * SIGNS @ sylvester / 4
    return blocks.reshape(padded.shape).astype(F32)


def code_bytes(values, format):
    """float32 values as the codes of a format, finite ones limited to its range."""
    if format == INT8:
        return np.clip(np.rint(values), -127, 127).astype(np.int8)
    top = F32(LARGEST[format])
    return np.clip(values, -top, top).astype(getattr(ml_dtypes, format)).view(np.uint8)


def scale_of(how, largest, largest_of_all):
    """(what a block is multiplied by, its stored scale, the float32 factor of all)."""
    top = F32(LARGEST[how.format])
    if how.scale == "float8_e8m0fnu":
        mantissa, exponent = math.frexp(largest * (F32(1) / top))  # in float32
        exponent = max(-127, exponent - (mantissa == 0.5)) if mantissa else -127
        return F32(2.0**-exponent), exponent + 127, None
    if how.scale == "float8_e4m3fn":
        encode = min(F32(448) * top / largest_of_all, np.finfo(F32).max) if largest_of_all else np.finfo(F32).max
        stored = min(largest * (encode * (F32(1) / top)), F32(448)).astype(ml_dtypes.float8_e4m3fn)
        decode = stored.astype(F32) * (F32(1) / encode)
        return min(F32(1) / decode, np.finfo(F32).max), int(stored.view(np.uint8)), F32(1) / encode
    largest = max(largest, F32(how.epsilon))
    if how.format == INT8:
        return F32(1) / (largest / top), largest / top, None
    scale = min(top / largest, np.finfo(F32).max) if largest else F32(1)
    if how.scale == "power_of_2" and largest:
        scale = F32(2.0 ** (math.frexp(scale)[1] - 1))
    return scale, F32(1) / scale, None


@np.errstate(all="ignore")
def formulas(values, how):
    """(codes, scales, factor) of a matrix, block by block."""
    values = transformed(values) if how.hadamard else values
    rows, columns = values.shape
    r, c = (extent or whole for extent, whole in zip(how.block, values.shape, strict=True))
    codes = np.empty(values.shape, np.int8 if how.format == INT8 else np.uint8)
    scales, factor = np.empty((-(-rows // r), -(-columns // c)), np.float64), None
    for i in range(len(scales)):
        for j in range(scales.shape[1]):
            block = np.s_[i * r : (i + 1) * r, j * c : (j + 1) * c]
            scale, scales[i, j], factor = scale_of(how, np.abs(values[block]).max(), np.abs(values).max())
            codes[block] = code_bytes(values[block] * scale, how.format)
    return codes, scales, factor


def code_words(quantized):
    return host(unpacked(quantized))


@NEAREST
def test_codes_and_scales_are_those_of_the_formulas_bit_for_bit(how):
    for kind, values in matrices(how.hadamard).items():
        scale = on_device(np.full((1, 1), 3.7, F32)) if how.delayed else None
        found, largest = quantize(on_device(values), how, scale)
        if how.delayed:
            with np.errstate(over="ignore"):
                codes, scales, factor = code_bytes(values * F32(3.7), how.format), F32(1) / F32(3.7), None
            assert host(largest)[0, 0] == np.abs(values).max()
        else:
            codes, scales, factor = formulas(values, how)
        np.testing.assert_array_equal(code_words(found), codes, kind)
        np.testing.assert_array_equal(host(found.scales), np.broadcast_to(scales, found.scales.shape), kind)
        assert factor is None or host(found.factor)[0, 0] == factor, kind


@NEAREST
def test_16_bit_values_have_the_codes_of_the_same_values_in_float32(how):
    values = matrices(how.hadamard)["normal"]
    for dtype in (float16, bfloat16):
        low = values.astype(dtype)
        scale = on_device(np.full((1, 1), 3.7, F32)) if how.delayed else None
        a, b = (quantize(on_device(each), how, scale)[0] for each in (low, low.astype(F32)))
        np.testing.assert_array_equal(host(a.codes), host(b.codes))
        np.testing.assert_array_equal(host(a.scales), host(b.scales))


def test_the_scale_of_a_block_of_mxfp8_is_the_least_power_of_2_that_saturates_nothing():
    how, top = RECIPES["mxfp8"].forward.first, 448
    for exponent in range(-100, 100, 7):
        for ratio, more in ((1, 0), (1 + 2**-20, 1), (1 - 2**-20, 0), (0.5 + 2**-20, 0)):
            found, _ = quantize(on_device(np.full((1, 32), ratio * top * 2.0**exponent, F32)), how)
            assert int(host(found.scales)[0, 0]) - 127 == exponent + more


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@WAYS
def test_a_block_with_an_infinity_or_nan_becomes_nan_and_no_other_block_does(how, bad):
    values = matrices()["normal"].copy()
    values[20, 150] = bad
    scale = on_device(np.ones((1, 1), F32)) if how.delayed else None
    back = host(dequantize(quantize(on_device(values), how, scale)[0]))[:, :277]
    r, c = (extent or whole for extent, whole in zip(how.block, values.shape, strict=True))
    touched = np.zeros(values.shape, bool)
    touched[20 // r * r : 20 // r * r + r, 150 // c * c : 150 // c * c + c] = True
    if how.delayed:  # its scale is that of earlier steps: the element alone
        touched = ~np.isfinite(values)
    np.testing.assert_array_equal(np.isnan(back), touched)


def test_a_finite_value_that_a_scale_carries_out_of_float32_saturates():
    how = Quantization(E4M3, delayed=True)
    found, _ = quantize(on_device(np.array([[1e5, -1e5]], F32)), how, on_device(np.full((1, 1), 1e38, F32)))
    assert [*code_words(found)[0]] == [0x7E, 0xFE]


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
@WAYS
def test_a_matrix_without_values_is_quantized(how, shape):
    scale = on_device(np.ones((1, 1), F32)) if how.delayed else None
    found = quantize(on_device(np.zeros(shape, F32)), how, scale)[0]
    assert host(dequantize(found)).size == 0


@pytest.mark.parametrize("how", [how for how in ways() if how.stochastic], ids=name_of)
def test_stochastic_rounding_goes_to_a_neighbour_with_the_probability_of_its_distance(how):
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = np.tile(np.linspace(0.03, 5.9, 15), 400).astype(F32)
    values = np.pad(values.reshape(-1, 15), ((0, 0), (0, 1)), constant_values=6)  # so that scales are known
    ampkit.manual_seed(1)
    means = []
    for _ in range(8):
        found, _ = quantize(on_device(values), how)
        back = host(dequantize(found))
        if how.hadamard:
            means.append(host(undo_hadamard(dequantize(found))))
            continue
        high = np.searchsorted(grid, values)
        np.testing.assert_array_less(np.minimum(abs(back - grid[high]), abs(back - grid[high - 1])), 1e-5)
        means.append(back)
    mean = np.mean(means, axis=(0, 1))
    assert np.abs(mean - values[0])[:15].max() < 0.05  # 3,200 draws of steps of 2 at most


def test_stochastic_rounding_takes_16_bits_of_the_stream_for_each_value():
    how = Quantization(E2M1, (1, 16), "float8_e4m3fn", stochastic=True)
    values = np.abs(matrices()["normal"][:, :160])
    values[:, ::16] = 6
    ampkit.manual_seed(7)
    draw = streams.default.take()
    ampkit.manual_seed(7)
    found, _ = quantize(on_device(values), how)
    bits = np.asarray(streams.random_bits(*draw, values.size)).reshape(values.shape)
    ulp = np.where(values < 2, 0.5, np.where(values < 4, 1, 2))
    wanted = (np.floor(values / ulp) + (values / ulp % 1 * 65536 > bits)) * ulp
    np.testing.assert_allclose(host(dequantize(found)), wanted, rtol=1e-6)


def test_4_bit_codes_are_packed_two_to_a_byte_with_the_even_column_in_the_low_bits():
    how = Quantization(E2M1, (1, 16), "float8_e4m3fn")
    found, _ = quantize(on_device(np.array([[6, -6, 3]], F32)), how)
    assert host(found.codes).tolist() == [[0xF7, 0x05]]
    assert found.nbytes == 2 + 1


# products


def exact(quantized):
    """The values of a quantized matrix in float64."""
    how, codes = quantized.how, code_words(quantized)
    values = codes.astype(np.float64) if how.format == INT8 else codes.view(getattr(ml_dtypes, how.format))
    scales = host(quantized.scales)
    scales = scales if scales.dtype == F32 else scales.view(getattr(ml_dtypes, how.scale))
    r, c = (extent or whole for extent, whole in zip(how.block, quantized.shape, strict=True))
    spread = scales.astype(np.float64).repeat(r, 0).repeat(c, 1)[: codes.shape[0], : codes.shape[1]]
    factor = 1 if quantized.factor is None else float(host(quantized.factor)[0, 0])
    return values.astype(np.float64) * spread * factor


@pytest.mark.parametrize("product", ["forward", "input_gradient", "weight_gradient"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_product_is_within_float32_s_bound_of_the_exact_one(recipe, product):
    operands = getattr(recipe, product)
    if operands is None:
        return
    random = np.random.default_rng(5)
    a, b = (random.standard_normal((rows, 277)).astype(F32) for rows in (33, 18))
    scale = on_device(np.full((1, 1), 50, F32))
    a, b = (
        quantize(on_device(x), how, scale if how.delayed else None)[0] for x, how in zip((a, b), operands, strict=True)
    )
    bias = random.standard_normal(18).astype(F32)
    got = host(scaled_mm(a, b, float32, on_device(bias)))
    x, y = exact(a), exact(b)
    bound = 277 * 2.0**-24 * (np.abs(x) @ np.abs(y).T) + 2.0**-21 * np.abs(bias)
    np.testing.assert_array_less(np.abs(got - (x @ y.T + bias)), bound + 4 * 2.0**-24 * np.abs(got))


def test_a_product_of_int8_codes_is_exact_before_its_scales():
    how = RECIPES["int8"].forward.first
    codes = np.full((2, 70_000), 127, np.int8)
    codes[1, ::2] = -127
    one = on_device(np.ones((2, 1), F32))
    found = Quantized(on_device(codes), one, None, codes.shape, how)
    exact = float(F32(127**2 * 70_000))  # rounded once
    assert host(scaled_mm(found, found, float32)).tolist() == [[exact, 0], [0, exact]]


def test_a_symmetric_quantization_serves_the_transpose():
    for how in (Quantization(E4M3), Quantization(E5M2), RECIPES["blockwise"].forward.second):
        values = matrices()["normal"]
        a = quantize(on_device(values), how)[0].transposed
        b, _ = quantize(on_device(np.ascontiguousarray(values.T)), how)
        np.testing.assert_array_equal(host(a.codes), host(b.codes))
        np.testing.assert_array_equal(host(a.scales), host(b.scales))


def test_the_hadamard_transform_leaves_the_products_of_rows_alone():
    how = Quantization(E5M2, (1, None), hadamard=True)
    values = matrices()["normal"]
    found = quantize(on_device(values), how)[0]
    np.testing.assert_allclose(host(undo_hadamard(dequantize(found)))[:, :277], values, atol=np.abs(values).max() / 4)
