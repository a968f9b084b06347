"""EfficientNet: scaling, squeeze and excitation, stochastic depth, starting values, and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import models, ops, optim, tensor
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError
from ampkit.core import random
from ampkit.core.policy import autocast
from ampkit.models.efficientnet import B0, MBConv, SqueezeExcitation, Stage, StochasticDepth, scaled

RNG = np.random.default_rng(0)
TINY = (Stage(1, 3, 1, 8, 8, 2), Stage(2, 5, 2, 8, 16, 2))


def image(*shape):
    return tensor(RNG.standard_normal(shape).astype(np.float32))


def test_widths_are_scaled_to_eights_and_blocks_rounded_up():
    stages = scaled(B0, 1.4, 1.8)
    assert [stage.after for stage in stages] == [24, 32, 56, 112, 160, 272, 448]
    assert [stage.blocks for stage in stages] == [2, 4, 4, 6, 6, 8, 2]
    assert scaled(B0, 1.0, 1.0) == B0


@pytest.mark.cpu
def test_squeeze_and_excitation_weights_each_channel():
    module, x = SqueezeExcitation(4, 2).double(), RNG.standard_normal((3, 4, 5, 5))
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    y = x.mean((2, 3)) @ state["fc1.weight"][:, :, 0, 0].T + state["fc1.bias"]
    y = y / (1 + np.exp(-y)) @ state["fc2.weight"][:, :, 0, 0].T + state["fc2.bias"]
    expected = x * (1 / (1 + np.exp(-y)))[:, :, None, None]
    np.testing.assert_allclose(module(tensor(x)).detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_stochastic_depth_drops_whole_samples_and_scales_the_others():
    random.manual_seed(0)
    module = StochasticDepth(0.25)
    y = module(tensor(np.ones((4000, 2, 2, 1), np.float32))).numpy().reshape(4000, -1)
    assert (y == y[:, :1]).all()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (y[:, 0] == 0).mean() == pytest.approx(0.25, abs=0.03)
    x = image(2, 3, 2, 2)
    assert module.eval()(x) is x or np.array_equal(module(x).numpy(), x.numpy())


def test_stochastic_depth_rises_along_the_blocks():
    chances = [m.p for m in models.EfficientNet(TINY, 0.0, 0.2).modules() if isinstance(m, StochasticDepth)]
    assert chances == pytest.approx([0.0, 0.05, 0.1, 0.15])


@pytest.mark.cpu
def test_a_block_of_one_shape_adds_its_input():
    block, x = MBConv(2, 3, 1, 4, 4, 0.0).double().eval(), tensor(RNG.standard_normal((2, 4, 5, 5)))
    last, bias = block.block[-1][1], RNG.standard_normal(4)
    last.weight.data, last.bias.data = np.zeros(4), bias
    np.testing.assert_allclose(block(x).detach().numpy(), x.numpy() + bias[:, None, None], rtol=1e-12)
    assert MBConv(2, 3, 2, 4, 4, 0.0).double()(x).shape == (2, 4, 3, 3)


@pytest.mark.cpu
def test_efficientnet_starts_as_torchvision_starts_it():
    model = models.EfficientNet(TINY, 0.0, num_classes=100)
    assert model.features[0][0].weight.array.std() == pytest.approx(math.sqrt(2 / (8 * 9)), rel=0.2)
    assert abs(model.classifier[1].weight.array).max() == pytest.approx(0.1, rel=0.01)
    assert not model.classifier[1].bias.array.any()
    assert not model.features[1][0].block[1].fc1.bias.array.any()


def test_a_few_steps_on_one_batch_lower_the_loss():
    random.manual_seed(0)
    model = models.EfficientNet(TINY, 0.0, 0.0, num_classes=8)
    x, y, losses = image(8, 3, 16, 16), tensor(np.arange(8)), []
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(8):
        loss = ops.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_in_autocast_the_logits_are_low(dtype):
    with autocast(dtype=dtype):
        assert models.EfficientNet(TINY, 0.2)(image(2, 3, 16, 16)).dtype == dtype


WRONG = [
    (lambda: models.EfficientNet((), 0.2), "EfficientNet: needs at least one Stage, got none"),
    (lambda: models.EfficientNet(TINY[::-1], 0.2), "EfficientNet: needs stages[1] of 16 channels before, got 8"),
    (lambda: models.efficientnet_b0(0), "EfficientNet: needs num_classes as a positive integer, got 0"),
    (lambda: StochasticDepth(2), "StochasticDepth: needs a probability p from 0 to 1, got 2"),
]


@pytest.mark.parametrize(("make", "line"), WRONG, ids=[line for _, line in WRONG])
def test_a_wrong_argument_gives_one_clear_line(make, line):
    with pytest.raises(ArgumentError) as caught:
        make()
    assert str(caught.value).startswith(line)
