"""Bags of embeddings: each bag written out in a loop; empty bags, padding, offsets; bad input in one line."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import nn, ops, tensor
from ampkit.base.dtypes import float16, float32
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError, UndefinedError
from ampkit.core.autograd.tape import grad
from ampkit.testing import assert_close

RNG = np.random.default_rng(0)
TABLE, INDEX, SCALES = RNG.normal(size=(7, 3)), RNG.integers(0, 7, 13), RNG.normal(size=13)
BEGINS = [0, 0, 4, 5, 5, 13]
REDUCE = {"sum": np.sum, "mean": np.mean, "max": np.max}


def each_bag(mode, begins, padding=None, scales=None):
    """The bags in a loop; and the gradient of their sum for the table, of which bag each part comes."""
    out, gradient = np.zeros((len(begins), 3)), np.zeros_like(TABLE)
    for b, (begin, end) in enumerate(zip(begins, [*begins[1:], len(INDEX)], strict=True)):
        at = [i for i in range(begin, end) if INDEX[i] != padding]
        if not at:
            continue
        rows = TABLE[INDEX[at]] * (1 if scales is None else scales[at, None])
        out[b] = REDUCE[mode](rows, 0)
        for i, k in enumerate(at):
            share = {"sum": 1, "mean": 1 / len(at), "max": rows.argmax(0) == i}[mode]
            gradient[INDEX[k]] += share * (1 if scales is None else scales[k])
    return out, gradient


@pytest.mark.parametrize("mode", REDUCE)
@pytest.mark.parametrize("padding", [None, 2])
def test_a_bag_is_the_sum_the_mean_or_the_maximum_of_its_rows(mode, padding):
    want, gradient = each_bag(mode, BEGINS, padding)
    table = tensor(TABLE, requires_grad=True)
    out = ops.embedding_bag(tensor(INDEX), table, tensor(BEGINS), mode=mode, padding_idx=padding)
    assert_close(out, want)
    assert_close(grad(out.sum(), table)[0], gradient)
    layer = nn.EmbeddingBag.from_pretrained(tensor(TABLE), True, mode=mode, padding_idx=padding)
    assert_close(layer(tensor(INDEX[:12].reshape(3, 4))), each_bag(mode, [0, 4, 8, 12], padding)[0][:3])
    assert not layer.weight.requires_grad


def test_weights_of_samples_multiply_the_rows_and_get_gradients():
    scales = tensor(SCALES, requires_grad=True)
    out = ops.embedding_bag(tensor(INDEX), tensor(TABLE), tensor(BEGINS), mode="sum", per_sample_weights=scales)
    assert_close(out, each_bag("sum", BEGINS, scales=SCALES)[0])
    assert_close(grad(out.sum(), scales)[0], TABLE[INDEX].sum(1))


def test_the_last_offset_may_be_where_the_last_bag_ends():
    out = ops.embedding_bag(tensor(INDEX), tensor(TABLE), tensor([0, 4, 9]), include_last_offset=True)
    assert_close(out, np.stack([TABLE[INDEX[:4]].mean(0), TABLE[INDEX[4:9]].mean(0)]))


@pytest.mark.parametrize("mode", REDUCE)
def test_many_rows_in_a_bag_keep_their_digits_in_float32(mode):
    index, table = tensor(RNG.integers(0, 50, (2, 3000))), RNG.uniform(0, 1, (50, 2)).astype(float32)
    exact = ops.embedding_bag(index, tensor(table.astype(float)), mode=mode)
    assert_close(ops.embedding_bag(index, tensor(table), mode=mode), exact.numpy(force=True))


def test_an_extreme_row_wins_and_nan_stays():
    table = tensor([[-np.inf, np.nan], [-np.inf, 1.0]])
    assert_close(ops.embedding_bag(tensor([[1, 0, 1]]), table, mode="max"), np.float32([[-np.inf, np.nan]]))


def test_of_equal_rows_the_first_gets_the_gradient_of_the_maximum():
    table = tensor([[1.0], [2.0], [2.0]], requires_grad=True)
    out = ops.embedding_bag(tensor([[0, 2, 1], [1, 2, 1]]), table, mode="max")
    assert grad(out.sum(), table)[0].tolist() == [[0], [1], [1]]


def bag(index=INDEX, offsets=BEGINS, **options):
    return ops.embedding_bag(tensor(index), tensor(TABLE), None if offsets is None else tensor(offsets), **options)


BAD = [
    (ShapeError, r"input \[B, L\], or input \[n\] with offsets", lambda: bag(offsets=None)),
    (ShapeError, "at least one bag", lambda: bag(offsets=np.zeros(0, np.int64))),
    (RangeError, "offsets from 0 to 13 that never decrease, got 3 at position 2", lambda: bag(offsets=[0, 5, 3])),
    (RangeError, "got 1 at position 0", lambda: bag(offsets=[1, 5])),
    (RangeError, "got 14 at position 1", lambda: bag(offsets=[0, 14])),
    (RangeError, "indices from 0 to 6", lambda: bag([[0, 7]], None)),
    (DTypeError, "integer offsets, got float32", lambda: bag(offsets=[0.0, 1.0])),
    (ArgumentError, "mode 'sum', 'mean' or 'max', got 'min'", lambda: bag(mode="min")),
    (UndefinedError, "mode 'sum' with per_sample_weights", lambda: bag(per_sample_weights=tensor(SCALES))),
    (
        ShapeError,
        r"per_sample_weights of the input's shape \(13,\)",
        lambda: bag(mode="sum", per_sample_weights=tensor(SCALES[:3])),
    ),
    (
        DTypeError,
        "per_sample_weights in float64, as weight, got float16",
        lambda: bag(mode="sum", per_sample_weights=tensor(SCALES.astype(float16))),
    ),
    (ArgumentError, "EmbeddingBag: needs mode", lambda: nn.EmbeddingBag(3, 2, mode="min")),
]


@pytest.mark.cpu
@pytest.mark.parametrize(("kind", "line", "call"), BAD, ids=[line for _, line, _ in BAD])
def test_what_does_not_fit_is_refused_in_one_line(kind, line, call):
    with pytest.raises(kind, match=line):
        call()
