"""Products by FP8, FP4 and int8 units of every card, whose emulation holds to NVIDIA's documentation of cublasLt."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

import ampkit
from ampkit import Policy, autocast, nn, optim
from ampkit.backends.cuda.libs.blas import Compute, ScaleMode
from ampkit.backends.cuda.libs.narrow_paths import path_of
from ampkit.base.dtypes import bfloat16, float32
from ampkit.core.dispatch import reference_only
from ampkit.core.policy.recipe import E2M1, E4M3, E5M2, FAMILIES, INT8, RECIPES, Operands, Quantization
from ampkit.ops.linalg.quantization import (
    Quantized,
    dequantize_reference,
    quantize_,
    quantize_reference,
    scaled_mm,
    scaled_mm_reference,
)

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))
CARDS = [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]
NEWEST = 131000
PRODUCTS = ("forward", "input_gradient", "weight_gradient")
PAIRS = {pair: f"{r.name} {name}" for r in RECIPES.values() for name in PRODUCTS if (pair := getattr(r, name))}
PAIRS = {name: pair for pair, name in PAIRS.items() if pair.first.format != INT8}
WIDE, SCALAR, AFTER = None, ScaleMode.SCALAR, "after"
UNITS = {  # of the forward, on each of CARDS
    "current": [WIDE, SCALAR, SCALAR, SCALAR, SCALAR],
    "delayed": [WIDE, SCALAR, SCALAR, SCALAR, SCALAR],
    "rowwise": [WIDE, AFTER, ScaleMode.OUTER, AFTER, AFTER],
    "rowwise_with_gw_hp": [WIDE, AFTER, ScaleMode.OUTER, AFTER, AFTER],
    "blockwise": [WIDE, WIDE, ScaleMode.STRIP, WIDE, WIDE],
    "mxfp8": [WIDE, WIDE, WIDE, ScaleMode.MX, WIDE],
    "nvfp4": [WIDE, WIDE, WIDE, ScaleMode.NV, WIDE],
}


def matrix(shape, seed=0):
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(shape) * np.exp2(rng.integers(-12, 8, (shape[0], 1)) + rng.integers(-5, 5, shape))
    return found.astype(float32)


def on(device, card, version=NEWEST):
    """The emulated GPU as another card, with another cublasLt."""
    device.capability = device.cublaslt.capability = card
    device.cublaslt.version = version
    return device


def quantized(device, values, how):
    scale, draw = np.float32(2.5).reshape(1, 1) if how.delayed else None, (7, 3) if how.stochastic else None
    parts = quantize_(device.asarray(values), how, None if scale is None else device.asarray(scale), draw)[:3]
    host = quantize_reference(values, how, scale, draw)[:3]
    shape = values.shape[0], values.shape[1] + (-values.shape[1] % 16) * how.hadamard
    return Quantized(*parts, shape, how), Quantized(*host, shape, how)


def operands(device, pair, m=72, n=48, k=224):
    """Two matrices on the GPU, quantized; the exact product of their values, and the sums of its terms' magnitudes."""
    shapes = zip(((m, k), (n, k)), range(2), strict=True)
    (a, host_a), (b, host_b) = [quantized(device, matrix(*given), how) for given, how in zip(shapes, pair, strict=True)]
    left, right = [dequantize_reference(each.codes, each).astype(float) for each in (host_a, host_b)]
    return a, b, left @ right.T, np.abs(left) @ np.abs(right).T


def check(device, given, dtype=float32, bias=None):
    """Within float32 accumulation of the exact product; -> the products that cublasLt ran."""
    (a, b, truth, size), before = given, len(device.cublaslt.ran)
    found = scaled_mm(a, b, dtype, None if bias is None else device.asarray(bias))
    added = np.float64(0) if bias is None else bias.astype(float)
    unit = 2.0**-8 if dtype == bfloat16 else 2.0**-24
    bound = unit * np.abs(truth + added) + 2.0**-20 * (size + np.abs(added))
    assert found.dtype == dtype
    assert (np.abs(found.get().astype(float) - (truth + added)) <= bound).all()
    return device.cublaslt.ran[before:]


def check_product(device, pair, *shape, **options):
    return check(device, operands(device, pair, *shape), **options)


@pytest.mark.parametrize("name", PAIRS)
def test_products_are_right_on_every_card(device, name):
    given, bias = operands(device, PAIRS[name]), matrix((1, 48), 2)[0]
    for card in CARDS:
        for dtype, added in ((float32, None), (bfloat16, bias.astype(bfloat16)), (bfloat16, bias)):
            (ran,) = check(on(device, card), given, dtype, added)
            assert (ran.scales is None) == (path_of(*PAIRS[name], card, NEWEST).modes is None)


@pytest.mark.parametrize("name", UNITS)
def test_each_card_has_the_units_that_nvidia_documents(device, name):
    given = operands(device, RECIPES[name].forward)
    for card, units in zip(CARDS, UNITS[name], strict=True):
        (ran,) = check(on(device, card), given)
        assert (ran.scales and ran.scales[1]) == (SCALAR if units is AFTER else units)
        path = path_of(*RECIPES[name].forward, card, NEWEST)
        assert path.then_scaled == (units is AFTER)
        assert bool(path.why) == (units in (WIDE, AFTER))
        assert f"{card[0]}.{card[1]}" in path.in_words or not path.why


def test_an_old_cublaslt_is_not_asked_for_what_it_lacks(device):
    for name, card, since in (
        *(("current", card, 110800) for card in ((8, 9), (9, 0))), ("rowwise", (9, 0), 120900),
        ("blockwise", (9, 0), 120900), ("mxfp8", (10, 0), 120800), ("nvfp4", (10, 0), 120800),
    ):  # fmt: skip
        pair = RECIPES[name].forward
        modes = [path_of(*pair, card, version).modes for version in (since, since - 100)]
        assert modes[0] is not None and modes[0] != modes[1]
        check_product(on(device, card, since - 100), pair)


STRIP, SQUARE = Quantization(E4M3, (1, 128), "power_of_2"), Quantization(E4M3, (128, 128))
MX, NV = Quantization(E5M2, (1, 32), "float8_e8m0fnu"), Quantization(E2M1, (16, 16), "float8_e4m3fn")


@pytest.mark.parametrize(
    ("card", "pair"),
    [
        ((9, 0), (STRIP, SQUARE)), ((9, 0), (SQUARE, STRIP)), ((9, 0), (STRIP, STRIP)),
        ((9, 0), RECIPES["rowwise_with_gw_hp"].input_gradient), ((10, 0), RECIPES["mxfp8"].forward),
        ((10, 0), (RECIPES["mxfp8"].forward.first, MX)), ((10, 0), RECIPES["nvfp4"].forward), ((10, 0), (NV, NV)),
    ],
    ids=lambda given: " by ".join(how.in_words for how in given) if isinstance(given[0], Quantization) else str(given),
)  # fmt: skip
def test_scales_lie_as_the_units_read_them(device, card, pair):
    for m, n, k in ((132, 272, 672), (4, 16, 1184)):
        (ran,) = check_product(on(device, card), pair, m, n, k)
        assert ran.scales is not None


def test_no_card_multiplies_two_matrices_of_e5m2_or_of_squares(device):
    for how in (Quantization(E5M2), SQUARE):
        given = operands(device, (how, how), 64, 48, 144)
        for card in CARDS:
            (ran,) = check(on(device, card), given)
            assert ran.scales is None


def test_sizes_that_the_units_do_not_take_and_refused_calls_run_in_bfloat16(device):
    pair = RECIPES["current"].forward
    for m, n, k in ((7, 48, 64), (64, 40, 64), (64, 48, 72)):
        (ran,) = check_product(device, pair, m, n, k)
        assert (ran.scales is None) == (m == 64)
    device.cublaslt.refuse = lambda product: product.scales is not None
    (ran,) = check_product(device, pair)
    assert ran.a.dtype == bfloat16 and device.refusals()


def test_a_bias_that_cublaslt_does_not_add_is_added_afterwards(device):
    device.cublaslt.refuse = lambda product: product.scales is not None and product.epilogue.has_bias
    bias = matrix((1, 48), 2)[0].astype(bfloat16)
    (ran,) = check_product(device, RECIPES["blockwise"].forward, dtype=bfloat16, bias=bias)
    assert ran.scales is not None and ran.d.dtype == float32


@pytest.mark.parametrize("card", [(8, 0), (9, 0)], ids=str)
@pytest.mark.parametrize("name", ["current", "rowwise", "blockwise", "nvfp4", "int8"])
def test_a_product_is_written_to_the_memory_that_it_is_given(device, name, card):
    a, b, *_ = operands(on(device, card), RECIPES[name].forward)
    for dtype in (float32, bfloat16):
        plain, buffer = scaled_mm(a, b, dtype), device.empty((72, 48), dtype)
        assert scaled_mm(a, b, dtype, None, buffer) is buffer
        np.testing.assert_array_equal(buffer.get(), plain.get())
        assert scaled_mm(a, b, dtype, None, device.empty((48, 72), dtype)).shape == (72, 48)


def test_products_of_integers_are_exact_at_every_size(device):
    how = RECIPES["int8"].forward.first
    for m, n, k in ((70, 48, 3000), (3, 5, 7), (5, 18, 30), (64, 64, 64)):
        (a, host_a), (b, host_b) = (quantized(device, matrix((rows, k), rows), how) for rows in (m, n))
        found = scaled_mm(a, b, float32, None).get()
        assert device.cublaslt.ran[-1].compute is Compute.INT32
        truth = scaled_mm_reference(host_a.codes, host_a, host_b, float32, None)
        np.testing.assert_allclose(found, truth, rtol=2.0**-22)
        assert (truth != 0).any()


def test_every_recipe_has_a_line_on_every_card():
    mixed = Operands(Quantization(INT8, (1, 32)), Quantization(INT8))
    for card in CARDS:
        for pair in (*PAIRS.values(), mixed, Operands(Quantization(E4M3, (1, 32)), Quantization(E4M3))):
            line = path_of(*pair, card, NEWEST).in_words
            assert line and "\n" not in line


def trained(recipe, where="cuda", compiled=False):
    """Losses and weights of six steps; compiled ones are recorded, with their random bits, and replayed."""
    ampkit.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to(where)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    word = next(word for word, names in FAMILIES.items() if recipe in names)

    def step(x):
        with autocast(where, policy=Policy(word, recipe=recipe)):
            loss = (model(x).float() - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = ampkit.compile(step) if compiled else step
    losses = [step(ampkit.tensor(matrix((64, 32), seed) / 100, device=where)).item() for seed in range(6)]
    return losses, *[p.numpy(force=True).copy() for p in model.parameters()]


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_a_training_follows_the_reference_and_has_the_same_bits_compiled(device, recipe):
    on(device, (10, 0) if recipe in ("mxfp8", "nvfp4") else (9, 0))
    found = trained(recipe)
    for one, other in zip(found, trained(recipe, compiled=True), strict=True):
        np.testing.assert_array_equal(one, other)
    with reference_only():
        truth = trained(recipe, "cpu")
    np.testing.assert_allclose(found[0], truth[0], rtol=2e-2)
