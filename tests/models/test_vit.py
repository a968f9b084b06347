"""Vision Transformer: its formula, starting values, and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import models, ops, optim, tensor
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core import random

RNG = np.random.default_rng(0)
TINY = {"image_size": 4, "patch_size": 2, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}


def norm(x, state, name):
    hat = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return hat * state[f"{name}.weight"] + state[f"{name}.bias"]


def attention(x, state, name, heads):
    q, k, v = np.split(x @ state[f"{name}.in_proj_weight"].T + state[f"{name}.in_proj_bias"], 3, -1)
    q, k, v = (part.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for part in (q, k, v))
    weight = np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
    mixed = (weight / weight.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(x.shape)
    return mixed @ state[f"{name}.out_proj.weight"].T + state[f"{name}.out_proj.bias"]


def gelu(x):
    return x * np.vectorize(lambda v: (1 + math.erf(v / math.sqrt(2))) / 2)(x)


def formula(state, image, patch, heads):
    n, c, side, _ = image.shape
    cells = image.reshape(n, c, side // patch, patch, side // patch, patch).transpose(0, 2, 4, 1, 3, 5)
    weight = state["conv_proj.weight"]
    patches = cells.reshape(n, -1, c * patch * patch) @ weight.reshape(len(weight), -1).T + state["conv_proj.bias"]
    x = np.concatenate([np.broadcast_to(state["class_token"], (n, 1, len(weight))), patches], 1)
    x = x + state["encoder.pos_embedding"]
    layer = "encoder.layers.encoder_layer_0"
    x = x + attention(norm(x, state, f"{layer}.ln_1"), state, f"{layer}.self_attention", heads)
    wide = gelu(norm(x, state, f"{layer}.ln_2") @ state[f"{layer}.mlp.0.weight"].T + state[f"{layer}.mlp.0.bias"])
    x = x + wide @ state[f"{layer}.mlp.3.weight"].T + state[f"{layer}.mlp.3.bias"]
    return norm(x, state, "encoder.ln")[:, 0] @ state["heads.head.weight"].T + state["heads.head.bias"]


@pytest.mark.cpu
def test_vit_is_attention_over_patches_and_a_class_token():
    model = models.VisionTransformer(**TINY, num_classes=5).double()
    for parameter in model.parameters():
        parameter.data = RNG.standard_normal(parameter.shape) / 2
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    image = RNG.standard_normal((2, 3, 4, 4))
    np.testing.assert_allclose(model(tensor(image)).detach().numpy(), formula(state, image, 2, 2), rtol=1e-9)


@pytest.mark.cpu
def test_vit_starts_as_torchvision_starts_it():
    model = models.vit(num_layers=1, representation_size=9)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    weight = state["conv_proj.weight"]
    assert weight.std() == pytest.approx(math.sqrt(1 / 48), rel=0.03)
    assert abs(weight).max() <= 2
    assert state["encoder.pos_embedding"].std() == pytest.approx(0.02, rel=0.05)
    block = "encoder.layers.encoder_layer_0"
    bound = math.sqrt(6 / (128 + 256))
    assert abs(state[f"{block}.mlp.0.weight"]).max() == pytest.approx(bound, rel=0.01)
    assert 0 < abs(state[f"{block}.mlp.3.bias"]).max() < 1e-5
    assert abs(state[f"{block}.self_attention.in_proj_weight"]).max() == pytest.approx(math.sqrt(6 / 512), rel=0.01)
    assert state["heads.pre_logits.weight"].std() == pytest.approx(math.sqrt(1 / 128), rel=0.1)
    zeros = ("class_token", "conv_proj.bias", "heads.pre_logits.bias", "heads.head.weight", "heads.head.bias")
    assert not any(state[name].any() for name in zeros)


def test_vit_starts_at_the_loss_of_a_guess_and_learns():
    random.manual_seed(0)
    model = models.vit(8, 4, 1, 2, 16, 16)
    x, y = tensor(RNG.standard_normal((8, 3, 8, 8)).astype(np.float32)), tensor(np.arange(8))
    optimizer, losses = optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(12):
        loss = ops.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(10), rel=1e-5)
    assert losses[-1] < losses[0] / 2


def test_dropout_is_at_work_in_training_only():
    model, x = _shaken(), tensor(np.ones((2, 3, 4, 4)))
    assert not np.array_equal(model(x).detach().numpy(), model(x).detach().numpy())
    model.eval()
    assert np.array_equal(model(x).detach().numpy(), model(x).detach().numpy())


def _shaken():
    model = models.VisionTransformer(**TINY, dropout=0.5, attention_dropout=0.5).double()
    model.heads.head.weight.data = RNG.standard_normal((1000, 8))
    return model


WRONG = [
    (
        lambda: models.vit(30),
        ArgumentError,
        "VisionTransformer: needs image_size that patch_size divides, got 30 and 4",
    ),
    (
        lambda: models.vit(num_heads=3),
        ArgumentError,
        "VisionTransformer: needs hidden_dim that num_heads divides, got 128 and 3",
    ),
    (lambda: models.vit(num_layers=0), ArgumentError, "VisionTransformer: needs num_layers as a positive integer"),
    (
        lambda: models.VisionTransformer(**TINY, representation_size=0),
        ArgumentError,
        "VisionTransformer: needs representation_size as a positive integer, got 0",
    ),
    (
        lambda: models.VisionTransformer(**TINY)(tensor(np.zeros((1, 3, 4, 8)))),
        ShapeError,
        "VisionTransformer: needs images [N, 3, 4, 4], got [1, 3, 4, 8]",
    ),
]


@pytest.mark.parametrize(("make", "kind", "line"), WRONG, ids=[line for *_, line in WRONG])
def test_a_wrong_size_gives_one_clear_line(make, kind, line):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value).startswith(line)
