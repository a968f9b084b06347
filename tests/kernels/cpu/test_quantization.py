"""Quantized matrices: the kernels give the codes and scales of the reference bit for bit, and its products."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import ampkit
from ampkit import autocast, nn
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.backends.cpu.onednn.library import library as onednn
from ampkit.backends.cpu.threads import get_num_threads, set_num_threads
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.dispatch import reference_only
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.policy import Policy
from ampkit.core.policy.recipe import E2M1, E4M3, E5M2, INT8, RECIPES, Quantization
from ampkit.kernels.cpu.linalg.quantization import _decode
from ampkit.ops.linalg.quantization import (
    Quantized,
    dequantize,
    dequantize_,
    quantize,
    quantize_,
    quantize_both,
    quantize_reference,
    scaled_mm,
    scaled_mm_,
)

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

PRODUCTS = ("forward", "input_gradient", "weight_gradient")
PAIRS = sorted({pair for each in RECIPES.values() for name in PRODUCTS if (pair := getattr(each, name))}, key=repr)
WAYS = sorted({how for pair in PAIRS for how in pair}, key=repr)
ODD = [
    Quantization(E4M3, (2, 3)), Quantization(E5M2, (None, 1), "power_of_2"), Quantization(E5M2, (3, None)),
    Quantization(E2M1, (1, 17), "float8_e8m0fnu"), Quantization(E4M3, (None, 700), "float8_e4m3fn"),
    Quantization(E4M3, (200, 1), stochastic=True), Quantization(E5M2, (1, 40), "float8_e8m0fnu", stochastic=True),
    Quantization(INT8, (None, None)), Quantization(INT8, (130, 5)),
    Quantization(E5M2, (1, 32), "float8_e4m3fn", hadamard=True),
]  # fmt: skip
SHAPES = [(1, 1), (3, 5), (37, 131), (200, 700), (5, 5000)]
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-44, 3e38, -1e-30]


def matrix(shape, seed=0):
    """Values of many magnitudes, with blocks of zeros."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(shape) * np.exp2(rng.integers(-20, 12, (shape[0], 1)) + rng.integers(-5, 5, shape))
    found[shape[0] // 3 : shape[0] // 2, : shape[1] // 2] = 0
    return found.astype(float32)


def views(values):
    """The matrix with its rows, its columns and neither contiguous."""
    wide = np.zeros((values.shape[0], 2 * values.shape[1]), values.dtype)
    wide[:, ::2] = values
    return values, np.asfortranarray(values), wide[:, ::2]


def both(values, how, scale=None, draw=(7, 3)):
    """What the kernel returns, and the reference."""
    draw = draw if how.stochastic else None
    assert quantize_.select("cpu", values, how, scale, draw).name == "quantize_cpu"
    return quantize_(values, how, scale, draw), quantize_reference(values, how, scale, draw)


def check(found, truth):
    for got, want in zip(found[:4], truth[:4], strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(
                np.ascontiguousarray(got).view(np.uint8), np.ascontiguousarray(want).view(np.uint8)
            )


def scale_for(how, values):
    return np.float32(3.7).reshape(1, 1) if how.delayed else None


@pytest.mark.parametrize("how", [*WAYS, *ODD], ids=repr)
def test_codes_and_scales_are_those_of_the_reference(how):
    for shape in SHAPES:
        for values in views(matrix(shape)):
            check(*both(values, how, scale_for(how, values)))


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
def test_16_bit_values_are_read_as_they_are_stored(dtype):
    for how in WAYS:
        for values in views(np.clip(matrix((37, 131)), -6e4, 6e4).astype(dtype)):
            check(*both(values, how, scale_for(how, values)))


@pytest.mark.parametrize("special", SPECIAL, ids=str)
def test_values_that_are_special_get_the_codes_of_the_reference(special):
    for how in (*WAYS, *ODD):
        for values in (np.full((3, 40), special, float32), matrix((20, 70))):
            values[2, 35] = special
            with np.errstate(all="ignore"):
                found, truth = both(values, how, scale_for(how, values))
            check(found, truth)


@pytest.mark.parametrize("format", [E4M3, E5M2, E2M1, INT8])
def test_every_code_boundary_is_rounded_as_the_reference_does(format):
    exponents = np.arange(-30, 20)[:, None]
    steps = np.concatenate([np.arange(512), np.arange(512) + 2.0**-14]) / 16
    values = np.ldexp(steps, exponents).astype(float32)
    how = Quantization(format) if format == INT8 else Quantization(format, delayed=True)
    check(*both(values, how, None if format == INT8 else np.float32(1).reshape(1, 1)))
    check(*both(-values, how, None if format == INT8 else np.float32(1).reshape(1, 1)))


def quantized(values, how, draw=(7, 3)):
    codes, scales, factor, *_ = quantize_(values, how, scale_for(how, values), draw if how.stochastic else None)
    return Quantized(
        codes, scales, factor, (values.shape[0], values.shape[1] + (-values.shape[1] % 16) * how.hadamard), how
    )


@pytest.mark.parametrize("how", [*WAYS, *ODD], ids=repr)
def test_dequantized_values_are_those_of_the_reference(how):
    for shape in SHAPES:
        for values in views(matrix(shape)):
            given = quantized(values, how)
            assert dequantize_.select("cpu", given.codes, given).name == "dequantize_cpu"
            found = dequantize(given)
            with reference_only():
                truth = dequantize(given)
            np.testing.assert_array_equal(found, truth)


def test_values_for_a_product_that_follows_are_those_of_the_codes():
    for how in (*WAYS, *ODD):
        for values in (*views(matrix((37, 131)))[:2], matrix((5, 5000)), matrix((300, 60)).T):
            ampkit.manual_seed(0)
            found, _ = quantize(values, how, scale_for(how, values), read_soon=True)
            if found.values is not None:
                ampkit.manual_seed(0)
                plain, _ = quantize(values, how, scale_for(how, values))
                truth, _ = _decode(plain, bfloat16, how.scale != "float32")
                np.testing.assert_array_equal(found.values.astype(float32), truth.astype(float32))


def test_every_code_has_its_value():
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    for format in (E4M3, E5M2, INT8):
        given = Quantized(
            codes.view(np.int8) if format == INT8 else codes,
            np.ones((1, 1), float32),
            None,
            (2, 128),
            Quantization(format),
        )
        with reference_only():
            truth = dequantize(given)
        np.testing.assert_array_equal(dequantize(given), truth)


def product_of(a, b, dtype, bias):
    assert scaled_mm_.select("cpu", a.codes, a, b, dtype, bias).name == "scaled_mm_cpu"
    return scaled_mm(a, b, dtype, bias)


def check_product(a, b, dtype, bias=None):
    """Within what float32 sums and one rounding allow."""
    found, (left, right) = product_of(a, b, dtype, bias), (dequantize(a).astype(float), dequantize(b).astype(float))
    added = 0 if bias is None else bias.astype(float)
    truth, size = left @ right.T + added, np.abs(left) @ np.abs(right).T + np.abs(added)
    assert found.dtype == dtype
    unit = 2.0**-8 if dtype == bfloat16 else 2.0**-24
    bound = unit * np.abs(truth) + 2.0**-20 * size + 1e-37
    np.testing.assert_array_equal(np.isnan(found.astype(float)), np.isnan(truth))
    assert (np.abs(found.astype(float) - truth) <= bound)[~np.isnan(truth)].all()


needs_products = pytest.mark.skipif(onednn() is None, reason="products are oneDNN's")


@needs_products
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda how: how.format)
def test_products_are_within_float32_accumulation(first, second):
    x, y = matrix((70, 200)), matrix((50, 200), 1)
    for a in views(x)[:2]:
        for b in views(y)[:2]:
            check_product(quantized(a, first), quantized(b, second), float32)
    bias = matrix((1, 50), 2)[0]
    check_product(quantized(x, first), quantized(y, second), bfloat16, bias)


@needs_products
def test_products_of_scales_beyond_bfloat16_stay_right():
    rows = Quantization(E4M3, (1, None), "power_of_2")
    for how, power in product((RECIPES["mxfp8"].forward.first, rows), (-140, -125, 100)):
        x, y = np.ldexp(matrix((40, 64)), power).astype(float32), matrix((30, 64), 1)
        with np.errstate(all="ignore"):
            check_product(quantized(x, how), quantized(y, how), float32)
    for scaling, block in (("float32", (1, 32)), ("float32", (2, None)), ("power_of_2", (4, 16))):
        how = Quantization(E4M3, block, scaling)
        check_product(quantized(matrix((40, 64)), how), quantized(matrix((30, 64), 1), how), float32)


@needs_products
def test_a_product_is_the_same_where_a_kernel_leaves_codes_out():
    rows = Quantization(E4M3, (1, None), "power_of_2")
    for how, power in product(
        (RECIPES["mxfp8"].forward.first, RECIPES["nvfp4"].forward.first, rows), (-140, -125, 0, 100)
    ):
        x, y = np.ldexp(matrix((40, 64)), power).astype(float32), matrix((30, 64), 1)
        with np.errstate(all="ignore"):
            soon, later = (
                scaled_mm(quantize(x, how, None, read_soon)[0], quantize(y, how, None, read_soon)[0], float32)
                for read_soon in (True, False)
            )
        np.testing.assert_array_equal(soon, later)


@needs_products
def test_a_product_without_values_is_that_of_the_reference():
    for how in (RECIPES["mxfp8"].forward.first, RECIPES["nvfp4"].forward.first, RECIPES["current"].forward.first):
        for m, n, k in ((0, 3, 5), (3, 0, 5), (3, 4, 0)):
            a, b = (quantize(matrix((rows, 16))[:, :k], how, None, True)[0] for rows in (m, n))
            found = scaled_mm(a, b, bfloat16, matrix((1, n))[0])
            np.testing.assert_array_equal(
                found.astype(float32), np.broadcast_to(matrix((1, n)), (m, n)).astype(bfloat16)
            )


@needs_products
def test_a_product_is_written_to_the_buffer_that_is_given_by_kernels_that_can():
    for first, second in PAIRS:
        a, b, buffer = (
            quantized(matrix((70, 200)), first),
            quantized(matrix((50, 200), 1), second),
            np.empty((70, 50), float32),
        )
        found = scaled_mm(a, b, float32, None, buffer)
        assert found is buffer or first.format == INT8
        np.testing.assert_array_equal(found, scaled_mm(a, b, float32))


@needs_products
def test_a_block_that_is_not_finite_gives_nan():
    for pair in PAIRS:
        x, y = matrix((70, 200)), matrix((50, 200), 1)
        x[3, 5] = np.inf
        found = product_of(quantized(x, pair[0]), quantized(y, pair[1]), float32, None)
        assert np.isnan(found[3]).any()


@needs_products
def test_products_of_integers_are_exact():
    how = RECIPES["int8"].forward.first
    large = (
        np.random.default_rng(2).uniform(0.9, 1.0, (6, 3000)).astype(float32)
    )  # float32 does not hold sums of products of such
    for a in (*views(matrix((70, 3000)))[:2], large):
        for b in (*views(matrix((50, 3000), 1))[:2], large):
            left, right = quantized(a, how), quantized(b, how)
            found = product_of(left, right, float32, None)
            with reference_only():
                truth = scaled_mm(left, right, float32)
            np.testing.assert_array_equal(found, truth)


@needs_products
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda how: how.format)
def test_no_product_is_left_to_numpy_on_any_cpu(first, second):
    a, b, bias = quantized(matrix((70, 200)), first), quantized(matrix((50, 200), 1), second), matrix((1, 50), 2)[0]
    for dtype, added in product((bfloat16, float16, float32), (None, bias)):
        kernel = scaled_mm_.select("cpu", a.codes, a, b, dtype, added)
        with ignore_fp_errors():  # as in a call of the op: some sums are infinite in float16
            assert kernel.run(a.codes, a, b, dtype, added).dtype == dtype  # raises UnsupportedError otherwise


def threaded(run):
    """What `run` returns on one thread and on two."""
    before, found = get_num_threads(), []
    try:
        for count in (1, 2):
            set_num_threads(count)
            found.append(run())
    finally:
        set_num_threads(before)
    return found


# The ways of a matrix and of its transpose: those of the presets, and others that have little in common.
TURNED = sorted(
    {
        (getattr(r, one)[at], getattr(r, other)[to])
        for r in RECIPES.values()
        for one, at, other, to in (("forward", 0, "weight_gradient", 1), ("forward", 1, "input_gradient", 1),
                                   ("input_gradient", 0, "weight_gradient", 0))
        if getattr(r, one) and getattr(r, other)
    },
    key=repr,
) + [(ODD[i], ODD[-1 - i]) for i in range(len(ODD))]  # fmt: skip
TURNED += [(RECIPES["nvfp4"].forward.first, ODD[1]), (ODD[-1], ODD[5]), (WAYS[0], Quantization(E4M3, (9001, 1)))]


def both_ways(values, first, second, read_soon=(False, False), together=True):
    """Parts of a matrix by `first` and its transpose by `second`, of one call or of two; None where one call cannot."""
    ampkit.manual_seed(3)
    with np.errstate(all="ignore"):
        if not together:
            calls = zip((values, values.T), (first, second), read_soon, strict=True)
            found = [quantize(array, how, None, soon)[0] for array, how, soon in calls]
        elif (found := quantize_both(values, first, second, None, read_soon)) is None:
            return None
    arrays = [array for each in found[:2] for array in (each.codes, each.scales, each.factor, each.values)]
    return [None if array is None else (array.dtype, array.tolist()) for array in map(bits, arrays)]


def bits(array):
    return None if array is None else array.view(np.uint16 if array.itemsize == 2 else f"u{array.itemsize}")


@pytest.mark.parametrize(("first", "second"), TURNED, ids=lambda how: how.in_words)
def test_one_reading_gives_a_matrix_and_its_transpose_as_two_do(first, second):
    given = [view for shape in (*SHAPES, (20, 33), (150, 1100)) for view in views(matrix(shape))]
    given += [views(np.clip(matrix((37, 131)), -6e4, 6e4).astype(dtype))[1] for dtype in (bfloat16, float16)]
    for special in SPECIAL:
        given.append(matrix((40, 70)))
        given[-1][3, 35] = special
    for values in given:
        found = both_ways(values, first, second)
        if first.delayed or (first == second and first.symmetric and first.format != E2M1):
            assert found is None  # one has a history, or is a view of the other
        else:
            assert found == both_ways(values, first, second, together=False)


@pytest.mark.parametrize("read_soon", [(True, False), (True, True), (False, True)])
def test_values_of_a_matrix_and_its_transpose_are_those_of_two_calls(read_soon):
    for (first, second), power in product(TURNED, (0, -140)):  # where bfloat16 does not hold some of them
        values = np.ldexp(matrix((37, 131)), power).astype(float32)
        found = both_ways(values, first, second, read_soon)
        assert found in (None, both_ways(values, first, second, read_soon, together=False))


def test_the_number_of_threads_changes_no_code_of_a_matrix_and_its_transpose():
    for first, second in TURNED:
        one, two = threaded(lambda: both_ways(matrix((130, 600)), first, second))  # noqa: B023
        assert one == two


def test_the_number_of_threads_changes_no_code():
    for how in (*WAYS, *ODD):
        for values in views(matrix((200, 700)))[:2]:
            check(*threaded(lambda: quantize_(values, how, scale_for(how, values), (7, 3) if how.stochastic else None)))  # noqa: B023


def train(recipe, word):
    """Losses and weights of three steps of a small network."""
    ampkit.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 192), nn.GELU(), nn.Linear(192, 64))
    optimizer = ampkit.optim.AdamW(model.parameters(), lr=1e-2)
    x = ampkit.randn(300, 64)
    losses = []
    for _ in range(3):
        with autocast("cpu", policy=Policy(word, recipe=recipe)):
            loss = (model(x).float() - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, *[p.detach().numpy().copy() for p in model.parameters()]


def word_of(recipe):
    return {"nvfp4": "float4", "int8": "int8"}.get(recipe, "float8")


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_a_training_has_the_same_bits_on_any_number_of_threads_and_follows_the_reference(recipe):
    one, two = threaded(lambda: train(recipe, word_of(recipe)))
    for a, b in zip(one, two, strict=True):
        if onednn() is None:  # the bits of NumPy's products may depend on the threads
            np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2)
        else:
            np.testing.assert_array_equal(a, b)
    with reference_only():
        truth = train(recipe, word_of(recipe))
    np.testing.assert_allclose(one[0], truth[0], rtol=2e-2)
