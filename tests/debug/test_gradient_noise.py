"""gradient_noise finds a noise scale that is known, tells rounding from noise, and leaves the model as it was."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import autocast, debug, nn
from ampkit.base.errors import ArgumentError, ShapeError, StateError
from ampkit.core.policy import Policy


def squares(model, x, y):
    return (model(x).float() - y).square().mean()


@pytest.fixture
def network():
    ampkit.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    return model, (ampkit.randn(24, 6), ampkit.randn(24, 3))


def test_the_noise_scale_is_that_of_the_formula(network):
    model, (x, y) = network
    each = []
    for i in range(24):
        model.zero_grad()
        squares(model, x[i : i + 1], y[i : i + 1]).backward()
        each.append(np.concatenate([p.grad.cpu().numpy().reshape(-1) for p in model.parameters()]).astype(np.float64))
    model.zero_grad()
    covariance, mean = np.cov(np.array(each).T), np.mean(each, 0)
    found = debug.gradient_noise(model, (x, y), loss=squares)
    assert found.all.deviation**2 == pytest.approx(np.trace(covariance), rel=1e-5)
    assert found.all.norm**2 == pytest.approx(mean @ mean - np.trace(covariance) / 24, rel=1e-4)
    assert found.scale == pytest.approx(np.trace(covariance) / found.all.norm**2, rel=1e-4)
    assert found.rounding == 0 and list(found.parameters) == [name for name, _ in model.named_parameters()]


def test_samples_whose_gradients_are_drawn_around_one_have_the_scale_of_the_draw():
    class Point(nn.Module):
        def __init__(self):
            super().__init__()
            self.at = nn.Parameter(ampkit.zeros(50))

        def forward(self, x):
            return self.at * x

    noise = np.random.default_rng(0).normal(size=(400, 50)).astype(np.float32)
    x = ampkit.tensor(0.5 + noise)  # the gradient of a sample: mean 0.5, deviation 1 in each of 50 components
    found = debug.gradient_noise(Point(), x, loss=lambda model, x: model(x).sum())
    assert found.scale == pytest.approx(1 / 0.25, rel=0.05)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_is_the_distance_from_float32(network, dtype):
    model, batch = network
    found = debug.gradient_noise(model, batch, dtype, squares)
    plain = debug.gradient_noise(model, batch, "float32", squares)
    assert 1e-4 < found.rounding < {"bfloat16": 3e-2, "float16": 4e-3}[dtype]
    assert found.scale == pytest.approx(plain.scale, rel=0.05)
    with autocast(model[0].weight.device.partition(":")[0], dtype=dtype):
        assert str(debug.gradient_noise(model, batch, loss=squares)) == str(found)
    assert f"in Policy('{dtype}')" in str(found) or f'in Policy("{dtype}")' in str(found)


def test_the_model_stays_as_it_was(network):
    model, batch = network
    model = nn.Sequential(nn.BatchNorm1d(6), *model).eval()
    model[0].train()
    before, state = {k: v.tolist() for k, v in model.state_dict().items()}, ampkit.get_rng_state()
    with pytest.raises(ampkit.AmpkitError):  # one sample has no variance
        debug.gradient_noise(model, batch, loss=squares)
    assert {k: v.tolist() for k, v in model.state_dict().items()} == before
    model.eval()
    debug.gradient_noise(nn.Sequential(nn.Dropout(0.5), model), batch, loss=squares)
    assert {k: v.tolist() for k, v in model.state_dict().items()} == before and ampkit.get_rng_state() == state
    assert all(p.grad is None for p in model.parameters())


def test_it_is_printed_by_parameter_with_the_batch_size_in_words(network):
    model, batch = network
    text = str(debug.gradient_noise(model, batch, "bfloat16", squares))
    lines = text.splitlines()
    assert lines[0].startswith("gradients of 24 samples in ") and lines[1].split() == [
        "noise", "scale", "norm", "deviation", "rounding",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[2:-1]] == ["all", "0.weight", "0.bias", "2.weight", "2.bias"]
    assert "samples save steps as they grow" in lines[-1] or "too few" in lines[-1]


def test_bad_input_is_one_line(network):
    model, (x, y) = network
    with pytest.raises(ArgumentError, match="needs Tensors of as many samples each, two or more, got 1, 24"):
        debug.gradient_noise(model, (x, y[:1]), loss=squares)
    with pytest.raises(ShapeError, match="a loss of one floating-point number"):
        debug.gradient_noise(model, (x, y), loss=lambda model, x, y: model(x))
    with pytest.raises(StateError, match=r"finite gradients, got NaN or inf in 0.weight, sample 0"):
        debug.gradient_noise(model, (x, y), loss=lambda model, x, y: squares(model, x, y) * float("inf"))
    with pytest.raises(ArgumentError, match="Parameters that require grad"):
        debug.gradient_noise(model.requires_grad_(False), (x, y), loss=squares)


def test_samples_run_at_once_where_they_can(network):
    model, batch = network
    calls = []

    def counted(model, x, y):
        calls.append(x.shape[0])
        return squares(model, x, y)

    def reading(model, x, y):
        return squares(model, x, y) * max(1.0, x.max().item() * 0)

    at_once, apart = (debug.gradient_noise(model, batch, "bfloat16", loss) for loss in (counted, reading))
    assert calls == [1, 1]  # under the policy and in float32
    assert apart.scale == pytest.approx(at_once.scale, rel=1e-3)
    assert apart.rounding == pytest.approx(at_once.rounding, rel=0.05)


def test_a_recipe_quantizes_sample_by_sample():
    ampkit.manual_seed(0)
    model, batch = nn.Linear(32, 32), (ampkit.randn(3, 32), ampkit.randn(3, 32))
    found = debug.gradient_noise(model, batch, Policy("bfloat16", recipe="mxfp8"), squares)
    assert found.rounding > debug.gradient_noise(model, batch, "bfloat16", squares).rounding


def test_both_precisions_drop_the_same_elements():
    ampkit.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    found = debug.gradient_noise(model, (ampkit.randn(24, 6), ampkit.randn(24, 3)), "bfloat16", squares)
    assert found.rounding < 3e-2
