"""Attention: masks of every kind, blocks that change nothing, dropout, memory, clear errors."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.backends.cpu.onednn.library import has_fast_matmul
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core import random
from ampkit.core.autograd.tape import grad
from ampkit.core.policy import autocast
from ampkit.ops.nn import attention, attention_math
from ampkit.testing import TOLERANCE, assert_close, gradcheck, gradgradcheck

RANDOM = np.random.default_rng(0)
attend = ops.scaled_dot_product_attention


def normal(*shape):
    return Tensor(RANDOM.normal(size=shape), requires_grad=True)


def plain(q, k, v, mask=None, scale=None):
    """Attention in float64, written out."""
    scores = q @ k.swapaxes(-1, -2) * (scale or q.shape[-1] ** -0.5)
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda d: d.name)
def test_long_rows_agree_with_float64(dtype):
    q, k, v = (tensor(RANDOM.normal(size=(n, 8)), dtype=dtype) for n in (100, 3000, 3000))
    relative, absolute = TOLERANCE[dtype]
    if dtype != float32 and has_fast_matmul(dtype):  # weights are rounded to it
        absolute = relative / 2
    assert_close(attend(q, k, v), plain(*(t.array.astype(np.float64) for t in (q, k, v))), (relative, absolute))


def test_scores_beyond_the_range_of_float16_do_no_harm():
    q, k = tensor([[300.0, 300.0]], dtype=float16), tensor([[300.0, 300.0], [299.0, 300.0]], dtype=float16)
    out = attend(q, k, tensor([[1.0], [2.0]], dtype=float16), scale=1.0)
    assert out.dtype == float16
    assert out.item() == 1


@pytest.mark.cpu
def test_a_query_that_may_look_nowhere_gets_zeros_and_no_gradient():
    q, k, v = normal(3, 4), normal(5, 4), normal(5, 2)
    added = np.zeros((3, 5))
    added[1] = -np.inf
    for mask in (tensor(added == 0), tensor(added)):
        out = attend(q, k, v, mask)
        assert out.tolist()[1] == [0, 0]
        assert np.isfinite(out.array).all()
        dq, dk, dv = grad(out.sum(), [q, k, v])
        assert not dq.array[1].any()
        assert all(np.isfinite(g.array).all() for g in (dq, dk, dv))


@pytest.mark.cpu
def test_second_derivatives_are_finite_where_a_query_may_look_nowhere():
    mask = tensor([[True, False], [False, False]])
    gradgradcheck(lambda q, k, v: attend(q, k, v, mask), [normal(2, 3), normal(2, 3), normal(2, 2)])


@pytest.mark.cpu
def test_causal_boolean_and_added_masks_say_the_same():
    q, k, v = normal(2, 7, 4), normal(2, 5, 4), normal(2, 5, 3)
    allowed = np.tri(7, 5, dtype=bool)
    want = plain(q.array, k.array, v.array, allowed)
    for out in (
        attend(q, k, v, is_causal=True),
        attend(q, k, v, tensor(allowed)),
        attend(q, k, v, tensor(np.where(allowed, 0, -np.inf))),
    ):
        np.testing.assert_allclose(out.array, want, atol=1e-14)


def everything(q, k, v, mask, causal):
    out = attend(q, k, v, mask, is_causal=causal)
    inputs = [q, k, v, *([mask] if mask is not None and mask.requires_grad else [])]
    return [out, *grad(out, inputs, [Tensor(np.random.default_rng(1).normal(size=out.shape))])]


@pytest.mark.cpu
@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "added"])
def test_small_blocks_change_nothing(kind, monkeypatch):
    q, k, v = normal(2, 3, 7, 4), normal(2, 1, 6, 4), normal(3, 6, 2)
    mask = {"boolean": tensor(RANDOM.random((2, 1, 7, 6)) < 0.7), "added": normal(3, 1, 6)}.get(kind)
    whole = everything(q, k, v, mask, kind == "causal")
    for block, rows in product((1, 20, 50, 100), (1, 4)):
        monkeypatch.setattr(attention_math, "BLOCK", block)
        monkeypatch.setattr(attention_math, "CAUSAL_ROWS", rows)
        for part, full in zip(everything(q, k, v, mask, kind == "causal"), whole, strict=True):
            np.testing.assert_allclose(part.array, full.array, rtol=1e-11, atol=1e-12)


def test_grouped_heads_are_heads_repeated():
    q, k, v = normal(2, 6, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 3)
    repeated = [Tensor(np.repeat(t.array, 3, 1)) for t in (k, v)]
    np.testing.assert_allclose(attend(q, k, v, enable_gqa=True).array, attend(q, *repeated).array, atol=1e-14)


@pytest.mark.parametrize("wanted", list(product([True, False], repeat=4))[:-1])
def test_every_combination_of_inputs_that_require_grad_works(wanted):
    full = [normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 4), normal(3, 5)]
    want = grad(attend(*full).sum(), full)
    some = [Tensor(t.array, needs) for t, needs in zip(full, wanted, strict=True)]
    found = iter(grad(attend(*some).sum(), [t for t in some if t.requires_grad]))
    for expected, needs in zip(want, wanted, strict=True):
        if needs:
            np.testing.assert_allclose(next(found).array, expected.array, atol=1e-14)


def fixed(q, k, v):
    return attention.scaled_dot_product_attention_(q, k, v, None, None, 0.4, (3, 7), False, None, False)


@pytest.mark.cpu
def test_dropout_drops_the_same_weights_in_both_directions():
    inputs = [normal(2, 4, 3), normal(2, 5, 3), normal(2, 5, 2)]
    gradcheck(fixed, inputs)
    gradgradcheck(fixed, inputs)


@pytest.mark.cpu
def test_dropout_keeps_its_share_and_the_mean():
    random.manual_seed(0)
    q = tensor(np.zeros((1, 400, 1)), dtype=float32)
    out = attend(q, q, tensor(np.ones((1, 400, 1)), dtype=float32), dropout_p=0.25).array
    assert abs(out.mean() - 1) < 0.01
    kept = out * 0.75 * 400
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-2)
    assert kept.min() > 255
    assert kept.max() < 345
    assert kept.std() > 5


def test_dropout_draws_anew_each_call_and_the_same_after_a_seed():
    q, k, v = normal(2, 4, 3), normal(2, 5, 3), normal(2, 5, 2)
    random.manual_seed(5)
    first, second = attend(q, k, v, dropout_p=0.5), attend(q, k, v, dropout_p=0.5)
    random.manual_seed(5)
    assert np.array_equal(attend(q, k, v, dropout_p=0.5).array, first.array)
    assert not np.array_equal(first.array, second.array)


def test_no_weights_are_kept_for_the_backward():
    q, k, v = (tensor(RANDOM.normal(size=(2, 50, 4)), dtype=float16, requires_grad=True) for _ in range(3))
    saved = vars(attend(q, k, v).node.saved)
    most = 4 * q.nbytes + 2 * 50 * 2 * 4  # operands, output, two float32 per row
    assert sum(getattr(a, "nbytes", 0) for a in saved.values()) <= most


def test_the_result_lies_in_memory_as_the_query_does():
    q = Tensor(RANDOM.normal(size=(2, 5, 3, 4)).transpose(0, 2, 1, 3))
    assert attend(q, q, q).array.transpose(0, 2, 1, 3).flags.c_contiguous


def test_in_autocast_it_answers_in_16_bits_and_masks_stay_boolean():
    q = tensor(RANDOM.normal(size=(2, 3, 4)), dtype=float32)
    with autocast(dtype=bfloat16):
        assert attend(q, q, q, tensor(np.tri(3, dtype=bool))).dtype == bfloat16


def ones(*shape):
    return tensor(np.ones(shape), dtype=float32)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        (
            (ones(2, 3), ones(4, 5), ones(4, 5)),
            {},
            ShapeError,
            "needs key [..., S, 3] and value [..., S, V], S at least 1",
        ),
        (
            (ones(2, 3), ones(4, 3), ones(5, 3)),
            {},
            ShapeError,
            "needs key [..., S, 3] and value [..., S, V], S at least 1",
        ),
        (
            (ones(3), ones(4, 3), ones(4, 3)),
            {},
            ShapeError,
            "needs query, key and value with at least 2 axes, got query [3]",
        ),
        (
            (ones(2, 2, 3), ones(3, 4, 3), ones(3, 4, 3)),
            {},
            ShapeError,
            "needs leading axes that broadcast, got query [2, 2, 3]",
        ),
        (
            (ones(3, 2, 3), ones(2, 4, 3), ones(2, 4, 3)),
            {"enable_gqa": True},
            ShapeError,
            "heads of key and value divide",
        ),
        (
            (ones(2, 3), ones(4, 3), ones(4, 3), ones(4, 2)),
            {},
            ShapeError,
            "needs attn_mask that broadcasts to [2, 4], got [4, 2]",
        ),
        ((ones(2, 3), ones(4, 3), ones(4, 3), ones(5, 2, 4)), {}, ShapeError, "attn_mask that broadcasts to [2, 4]"),
        (
            (ones(2, 3), ones(4, 3), ones(4, 3), ones(2, 4)),
            {"is_causal": True},
            ArgumentError,
            "needs is_causal or attn_mask, got both",
        ),
        ((ones(2, 3), ones(4, 3), ones(4, 3)), {"dropout_p": 1.5}, ArgumentError, "needs dropout_p in [0, 1), got 1.5"),
        (
            (ones(2, 3), ones(4, 3), ones(4, 3), tensor([1, 0, 1, 1])),
            {},
            DTypeError,
            "boolean or floating-point attn_mask, got int64",
        ),
    ],
)
def test_wrong_input_is_named(arguments, options, kind, message):
    with pytest.raises(kind) as error:
        attend(*arguments, **options)
    assert message in str(error.value)


def test_gradients_are_as_precise_where_one_weight_is_nearly_1():
    rng = np.random.default_rng(0)
    given = [9 * rng.uniform(-1, 1, (8, 6, 8)).astype(np.float32) for _ in range(3)]
    dy = rng.normal(size=(8, 6, 8)).astype(np.float32)

    def gradients(dtype):
        inputs = [tensor(x, dtype=dtype, requires_grad=True) for x in given]
        out = ops.scaled_dot_product_attention(*inputs)
        return [g.numpy() for g in grad(out, inputs, tensor(dy, dtype=dtype))]

    for found, exact in zip(gradients(float32), gradients(float64), strict=True):
        assert abs(found - exact).max() < 3e-6 * abs(exact).max()
