"""Functions with random numbers in them: what they keep on average, draws that repeat, gradients, bad input."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, tensor
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.autograd.tape import grad
from ampkit.testing import assert_close

X = np.random.default_rng(0).normal(size=(50, 400))
LEAST = -1.7580993408473766  # what selu makes of minus infinity


@pytest.fixture(autouse=True)
def _seeded():
    ampkit.manual_seed(3)


def test_alpha_dropout_keeps_mean_and_variance_and_writes_one_value_where_it_drops():
    for layer, p in ((nn.AlphaDropout(0.2), 0.2), (nn.AlphaDropout(), 0.5)):
        out = layer(tensor(X)).numpy(force=True)
        assert abs(out.mean()) < 0.03 and abs(out.var() - 1) < 0.03
        scale = 1 / np.sqrt((1 - p) * (1 + p * LEAST**2))
        dropped = np.isclose(out, scale * LEAST * (1 - p))
        assert abs(dropped.mean() - p) < 0.02
        np.testing.assert_allclose(out[~dropped], (scale * (X - LEAST * p))[~dropped], rtol=1e-6)
    assert nn.AlphaDropout().eval()(x := tensor(X)) is x


def test_the_gradient_of_alpha_dropout_is_its_scale_where_it_keeps():
    x = tensor(X, requires_grad=True)
    out = ops.alpha_dropout(x, 0.3, True)
    gradient, scale = grad(out.sum(), x)[0].numpy(force=True), 1 / np.sqrt(0.7 * (1 + 0.3 * LEAST**2))
    dropped = np.isclose(out.numpy(force=True), scale * LEAST * 0.7)
    np.testing.assert_allclose(gradient, np.where(dropped, 0, scale))
    ampkit.manual_seed(3)
    assert_close(ops.alpha_dropout(x, 0.3, True), out.numpy(force=True))


def test_feature_alpha_dropout_drops_whole_channels():
    out = nn.FeatureAlphaDropout(0.4)(tensor(np.zeros((20, 30, 2, 3)))).numpy(force=True)
    assert (out == out[:, :, :1, :1]).all()
    assert len(np.unique(out)) == 2
    assert_close(ops.feature_alpha_dropout(tensor(X), 1.0, True), np.zeros_like(X))


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=str)
def test_answers_have_the_dtype_of_the_input(dtype):
    x = tensor(X[:2].astype(dtype))
    for out in (ops.alpha_dropout(x, 0.5, True), ops.rrelu(x, training=True), ops.gumbel_softmax(x)):
        assert out.dtype == dtype


def test_rrelu_draws_a_slope_for_each_negative_element_and_otherwise_takes_the_mean():
    x = tensor(X, requires_grad=True)
    out = nn.RReLU(0.2, 0.6)(x)
    gradient = grad(out.sum(), x)[0].numpy(force=True)
    assert (gradient[X > 0] == 1).all()
    low = gradient[X <= 0]
    assert low.min() >= 0.2 and low.max() < 0.6 and abs(low.mean() - 0.4) < 0.01 and low.std() > 0.1
    assert_close(out, X * gradient)
    assert_close(nn.RReLU(0.2, 0.6).eval()(tensor(X)), np.where(X > 0, X, 0.4 * X))


def test_gumbel_softmax_chooses_by_the_probabilities_of_softmax():
    logits = np.tile(np.log([0.1, 0.2, 0.7]), (4000, 1))
    out = ops.gumbel_softmax(tensor(logits), hard=True).numpy(force=True)
    assert np.allclose(out.max(1), 1) and np.allclose(out.sum(1), 1)
    np.testing.assert_allclose(out.mean(0), [0.1, 0.2, 0.7], atol=0.03)
    soft = ops.gumbel_softmax(tensor(logits.T.copy()), tau=0.5, dim=0)
    np.testing.assert_allclose(soft.sum(0).numpy(force=True), 1)


def test_a_hard_sample_has_the_gradient_of_the_soft_one():
    x, weight, gradients = tensor(X[:4, :5], requires_grad=True), tensor(X[4:8, :5]), []
    for hard in (False, True):
        ampkit.manual_seed(5)
        gradients.append(grad((ops.gumbel_softmax(x, 0.7, hard) * weight).sum(), x)[0].numpy(force=True))
    np.testing.assert_allclose(*gradients)
    assert abs(gradients[0]).max() > 0.01


BAD = [
    (ArgumentError, "alpha_dropout: needs a probability p from 0 to 1, got 1.5", lambda x: ops.alpha_dropout(x, 1.5)),
    (
        ShapeError,
        r"feature_alpha_dropout: needs input \[N, C",
        lambda x: ops.feature_alpha_dropout(x[0], training=True),
    ),
    (ArgumentError, "rrelu: needs finite lower <= upper, got 2 and 1", lambda x: ops.rrelu(x, 2, 1)),
    (ArgumentError, "RReLU: needs lower <= upper", lambda x: nn.RReLU(2, 1)),
    (ArgumentError, "gumbel_softmax: needs a positive tau, got 0", lambda x: ops.gumbel_softmax(x, 0)),
    (DTypeError, "rrelu: needs a floating-point tensor, got int64", lambda x: ops.rrelu(x.long(), training=True)),
    (DTypeError, "gumbel_softmax: needs a floating-point tensor", lambda x: ops.gumbel_softmax(x.long())),
    (RangeError, "gumbel_softmax: needs dim from -2 to 1, got 2", lambda x: ops.gumbel_softmax(x, dim=2)),
]


@pytest.mark.parametrize(("kind", "line", "call"), BAD, ids=[line for _, line, _ in BAD])
def test_what_does_not_fit_is_refused_in_one_line(kind, line, call):
    with pytest.raises(kind, match=line):
        call(tensor(X[:2]))
