"""Attention by compiled tiles: values and gradients are those of float64 across the borders of tiles."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.backends.cpu import threads
from ampkit.backends.cpu.native import library as native
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, bool_, float16, float32, float64
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.kernels.cpu.nn import attention

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(library() is None, reason=unavailable_reason()),
    pytest.mark.skipif(native.library() is None, reason=native.unavailable_reason()),
]
attend = ops.scaled_dot_product_attention
ERROR = {float32: 5e-6, bfloat16: 2e-2, float16: 3e-3}  # of the largest element


@pytest.fixture
def small_tiles(monkeypatch):
    for name, value in {"ROWS": 16, "COLUMNS": 24, "SCORES_PER_THREAD": 800}.items():
        monkeypatch.setattr(attention, name, value)


def given(rows, columns, dtype=float32, lead=(2, 3), width=8):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((*lead, n, width)).astype(dtype) for n in (rows, columns, columns)]


def outcomes(arrays, dtype, mask=None, **options):
    """The output and the gradients of all operands, as float64."""
    ampkit.manual_seed(3)
    inputs = [Tensor(a.astype(dtype), requires_grad=True) for a in arrays]
    if mask is not None:
        mask = Tensor(mask if mask.dtype == bool_ else mask.astype(dtype), requires_grad=mask.dtype != bool_)
    out = attend(*inputs, mask, **options)
    inputs += [mask] if mask is not None and mask.requires_grad else []
    gradient = np.random.default_rng(1).standard_normal(out.shape).astype(dtype)
    return out.node.kernel.name, [x.array.astype(float) for x in (out, *grad(out, inputs, Tensor(gradient)))]


def check(arrays, dtype, mask=None, **options):
    name, found = outcomes(arrays, dtype, mask, **options)
    assert name == "scaled_dot_product_attention_cpu"
    with reference_only():
        _, truth = outcomes(arrays, float64, mask, **options)
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=ERROR[dtype] * max(2.0, abs(want).max()))


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(61, 61), (33, 90), (90, 35), (48, 48), (1, 1000)])
def test_tiles_of_any_size_give_the_values_and_gradients_of_float64(
    rows, columns, causal, dropout_p, dtype, small_tiles
):
    check(given(rows, columns, dtype), dtype, is_causal=causal, dropout_p=dropout_p)


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize(
    "shape", [(), (1,), (70,), (50, 1), (50, 70), (3, 50, 70), (3, 1, 1), (2, 1, 50, 70), (2, 1, 1, 70), (2, 3, 50, 70)]
)
def test_masks_of_every_shape_that_broadcasts(shape, boolean, small_tiles):
    rng = np.random.default_rng(2)
    mask = np.asarray(rng.random(shape) < 0.7) if boolean else np.asarray(rng.standard_normal(shape))
    check(given(50, 70), float32, mask)
    check(given(50, 70), float32, mask, dropout_p=0.2)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_rows_that_attend_to_nothing_or_late_are_right_in_every_tile(dtype, small_tiles):
    allowed = np.random.default_rng(2).random((50, 70)) < 0.5
    allowed[7] = allowed[20, :40] = allowed[33, 25:] = False
    check(given(50, 70, dtype), dtype, allowed)
    check(given(50, 70, dtype), dtype, np.where(allowed, 0.0, -np.inf).astype(dtype))
    _, (out, dq, *_) = outcomes(given(50, 70, dtype), dtype, allowed)
    assert not out[:, :, 7].any()
    assert not dq[:, :, 7].any()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 30, 69])
def test_a_row_with_a_score_that_is_not_finite_is_that_of_the_reference_and_others_stay(bad, at, small_tiles):
    mask = np.zeros((50, 70))
    mask[5, at] = bad
    _, found = outcomes(given(50, 70), float32, mask)
    with reference_only(), np.errstate(invalid="ignore"):
        _, truth = outcomes(given(50, 70), float32, mask)
    for got, want in zip((found[0], found[1]), (truth[0], truth[1]), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    assert np.isnan(found[0][0, 0, 5]).all() == (bad != -np.inf)


@pytest.mark.parametrize("causal", [False, True])
def test_large_scores_do_not_overflow(causal, small_tiles):
    q, k, v = given(50, 70)
    _, found = outcomes([q * 1000, k, v], float32, is_causal=causal)
    with reference_only():
        _, truth = outcomes([q * 1000, k, v], float64, is_causal=causal)
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-3 * abs(want).max())  # scores are rounded to 2^-13


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_the_compiled_passes_give_equal_bits_on_any_number_of_threads(dtype):
    scores, gradients = (np.random.default_rng(i).standard_normal((3, 100, 401)).astype(np.float32) for i in range(2))
    draw = np.array([1, 2, 20000, 100, 401], np.uint64)

    def run(count):
        threads.set_num_threads(count)
        weights, ds, x, dw = (
            np.empty(scores.shape, dtype),
            np.empty(scores.shape, dtype),
            scores.copy(),
            gradients.copy(),
        )
        sums, statistics = np.ones((3, 100, 8), np.float32), np.zeros((3, 100, 2), np.float32)
        arguments = None, None, draw.ctypes.data, 0, 200
        attention._weights(weights, x, statistics, sums, *arguments, 0.3)
        out = np.empty(sums.shape, dtype)
        attention._output(out, sums, statistics, 1.0)
        first = weights.copy()
        attention._gradients(weights, ds, scores.copy(), dw, statistics, sums[..., :1], *arguments, 0.3, 1.5, None)
        return first, out, weights, ds

    before = threads.get_num_threads()
    try:
        for one, two in zip(run(1), run(2), strict=True):
            np.testing.assert_array_equal(one, two)
    finally:
        threads.set_num_threads(before)


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_keys_that_no_query_attends_to_have_no_gradient(groups, dtype):
    np.full(1 << 20, np.nan, np.float32)  # memory that the next arrays may get
    shapes = (4, 60, 16), (4 // groups, 90, 16), (4 // groups, 90, 16)
    tensors = [ampkit.randn(*shape).to(dtype).requires_grad_() for shape in shapes]
    out = attend(*tensors, is_causal=True, enable_gqa=groups > 1)
    for gradient in grad(out.sum(), tensors[1:]):
        assert not np.asarray(gradient.float())[:, 60:].any()
