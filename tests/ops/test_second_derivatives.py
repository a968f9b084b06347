"""Second derivatives: far from 0, where the exponentials in a first one overflow float32, and of fused ops."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops, tensor
from ampkit.core.autograd.tape import grad

FAR = np.array([-1e4, -100, 100, 1e4], np.float32)


def target(x, value):
    return x.detach() * 0 + value


def pair(x):
    return ops.stack([x, x * 0 + 1])


# A function of each element, or the sum of one, whose second derivative is 0 in float32 at all of FAR.
STRAIGHT = {
    "silu": ops.silu,
    "mish": ops.mish,
    "softplus": ops.softplus,
    "softplus without a threshold": lambda x: ops.softplus(x, 2.0, 1e9),
    "logsigmoid": ops.logsigmoid,
    "sigmoid": ops.sigmoid,
    "gelu": ops.gelu,
    "gelu by tanh": lambda x: ops.gelu(x, "tanh"),
    "elu": ops.elu,
    "selu": ops.selu,
    "celu": ops.celu,
    "tanhshrink": ops.tanhshrink,
    "glu": lambda x: ops.glu(pair(x).flip(0), 0),
    "logaddexp": lambda x: ops.logaddexp(*pair(x)),
    "logsumexp": lambda x: ops.logsumexp(pair(x), 0),
    "softmax": lambda x: ops.softmax(pair(x), 0)[0],
    "binary_cross_entropy_with_logits": lambda x: ops.binary_cross_entropy_with_logits(x, target(x, 0.3)),
    "soft_margin_loss of 1": lambda x: ops.soft_margin_loss(x, target(x, 1.0)),
    "soft_margin_loss of -1": lambda x: ops.soft_margin_loss(x, target(x, -1.0)),
    "multilabel_soft_margin_loss": lambda x: ops.multilabel_soft_margin_loss(x[:, None], target(x[:, None], 0.3)),
    "gru_cell": lambda x: ops.gru_cell(x[:, None], target(x[:, None], 0.5), ops.ones(3, 1), ops.ones(3, 1)),
    "lstm_cell": lambda x: ops.lstm_cell(
        x[:, None], (target(x[:, None], 0.5), target(x[:, None], 0.5)), ops.ones(4, 1), ops.ones(4, 1)
    )[0],
}


@pytest.mark.parametrize("name", STRAIGHT)
def test_far_from_zero_gradients_are_finite_and_do_not_change(name):
    x = tensor(FAR, requires_grad=True)
    (gradient,) = grad(STRAIGHT[name](x).sum(), x, create_graph=True)
    assert np.isfinite(gradient.detach().numpy()).all()
    (bend,) = grad(gradient.sum(), x)
    assert abs(bend.numpy()).max() < 1e-30


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("channels", [3, 24])  # without a kernel and with one
def test_batch_norm_with_a_residual_and_relu_has_the_second_derivatives_of_its_parts(channels, training):
    rng = np.random.default_rng(0)
    shapes = (16, channels, 7, 9), (16, channels, 7, 9), (channels,)
    x, residual, weight = (tensor(rng.standard_normal(s).astype(np.float32), requires_grad=True) for s in shapes)
    statistics = (None, None) if training else (ops.zeros(channels), ops.ones(channels))
    given = (*statistics, weight, None, training)
    found = []
    for y in (ops.batch_norm_add_relu(x, residual, *given), ops.relu(ops.batch_norm(x, *given) + residual)):
        firsts = grad((y * y * y).sum(), [x, residual, weight], create_graph=True)
        found.append([*firsts, *grad(sum((g * g).sum() for g in firsts), [x, residual, weight])])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one.numpy(force=True), other.numpy(force=True), rtol=1e-4, atol=1e-4)
