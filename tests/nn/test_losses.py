"""Losses of pairs, triples and distributions: the module against the function, and against its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import ArgumentError, RangeError

DRAW = np.random.default_rng(0)
A, B, C = (ampkit.tensor(DRAW.normal(size=(5, 4))) for _ in range(3))
SIGN = ampkit.tensor([1, -1, 1, -1, -1])
a, b, c, s = A.array, B.array, C.array, SIGN.array
COSINE = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def far(x, y):
    return np.linalg.norm(x - y + 1e-6, axis=1)


LOSSES = [
    (nn.MarginRankingLoss(0.5), (A[:, 0], B[:, 0], SIGN), np.maximum(0.5 - s * (a - b)[:, 0], 0)),
    (nn.CosineEmbeddingLoss(0.1), (A, B, SIGN), np.where(s == 1, 1 - COSINE, np.maximum(COSINE - 0.1, 0))),
    (nn.HingeEmbeddingLoss(2.0), (A[:, 0], SIGN), np.where(s == 1, a[:, 0], np.maximum(2 - a[:, 0], 0))),
    (nn.SoftMarginLoss(), (A[:, 0], SIGN), np.log1p(np.exp(-s * a[:, 0]))),
    (nn.TripletMarginLoss(1.5), (A, B, C), np.maximum(1.5 + far(a, b) - far(a, c), 0)),
    (nn.TripletMarginLoss(swap=True), (A, B, C), np.maximum(1 + far(a, b) - np.minimum(far(a, c), far(b, c)), 0)),
    (nn.PoissonNLLLoss(), (A, SIGN[:, None] + 1), np.exp(a) - (s[:, None] + 1) * a),
    (nn.PoissonNLLLoss(False), (A.exp(), SIGN[:, None] + 1), np.exp(a) - (s[:, None] + 1) * np.log(np.exp(a) + 1e-8)),
    (nn.GaussianNLLLoss(full=True), (A, B, C.exp()), 0.5 * (c + (a - b) ** 2 / np.exp(c) + math.log(2 * math.pi))),
]


@pytest.mark.parametrize(("loss", "given", "each"), LOSSES, ids=[repr(loss) for loss, *_ in LOSSES])
def test_a_loss_follows_its_formula(loss, given, each):
    assert loss(*given).item() == pytest.approx(each.mean())
    loss.reduction = "none"
    assert np.allclose(loss(*given).array, each, rtol=1e-6)
    loss.reduction = "sum"
    assert loss(*given).item() == pytest.approx(each.sum())
    loss.reduction = "mean"


def test_they_take_the_older_words_and_refuse_what_is_none_of_them():
    assert nn.SoftMarginLoss(size_average=False).reduction == "sum"
    assert ops.soft_margin_loss(A, B, reduce=False).shape == A.shape
    for call in (
        lambda: ops.soft_margin_loss(A, B, reduction="all"),
        lambda: ops.triplet_margin_loss(A, B, C, reduction="all"),
        lambda: ops.triplet_margin_loss(A, B, C, margin=0),
    ):
        with pytest.raises(ArgumentError):
            call()


@pytest.mark.cpu
def test_a_variance_for_each_row_is_no_variance_for_each_column():
    x, y, var = A[:4], B[:4], np.array([0.5, 1.0, 2.0, 4.0])
    want = 0.5 * (np.log(var) + ((a - b)[:4] ** 2 / var[:, None]).T).T
    assert np.allclose(ops.gaussian_nll_loss(x, y, ampkit.tensor(var), reduction="none").array, want)
    assert np.allclose(ops.gaussian_nll_loss(x, y, 2.0, reduction="none").array[2], want[2])
    for wrong in (ampkit.tensor(-var), -0.5):
        with pytest.raises(RangeError, match="gaussian_nll_loss: needs a var of 0 or more, got -0.5"):
            ops.gaussian_nll_loss(x, y, wrong)


def test_the_gradient_of_the_cosine_of_a_zero_vector_is_bounded():
    x = ampkit.tensor([[0.0, 0.0]], requires_grad=True)
    ops.cosine_embedding_loss(x, ampkit.tensor([[3.0, 4.0]]), ampkit.tensor([1])).backward()
    assert np.allclose(x.grad.numpy(), [[-0.6e6, -0.8e6]])


def test_large_margins_do_not_overflow():
    assert ops.soft_margin_loss(ampkit.tensor([-2000.0]), ampkit.tensor([1.0])).item() == 2000.0
