"""The programs of docs/transforms-in-use.md give what theory, or the long way, says."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

import ampkit
from ampkit import func, nn, ops, optim

PAGE = Path(__file__).parents[2] / "docs" / "transforms-in-use.md"
pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def page():
    names = {"__name__": "docs"}
    for source in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(source, "transforms-in-use", "exec"), names)
    return names


def flat(tensors):
    return np.concatenate([t.detach().numpy().reshape(-1) for t in tensors.values()]).astype(np.float64)


def test_no_sample_moves_private_training_by_more_than_the_bound(page):
    alone = page["private_gradient"](page["x"][:1] * 100, page["y"][:1], noise=0.0)
    assert np.linalg.norm(flat(alone)) == pytest.approx(1.0, rel=1e-5)
    small = page["private_gradient"](page["x"], page["y"], bound=1e9, noise=0.0)
    plain = func.grad(page["loss"])(page["params"], page["x"], page["y"])
    np.testing.assert_allclose(flat(small), flat(plain), atol=0.02 * np.abs(flat(plain)).max())


def test_lanczos_finds_the_eigenvalue_of_the_whole_hessian(page):
    blocks = func.hessian(lambda p: page["loss"](p, page["x"], page["y"]))(page["params"])
    sizes = {name: p.numel() for name, p in page["params"].items()}
    whole = np.block(
        [[blocks[a][b].detach().numpy().reshape(sizes[a], sizes[b]) for b in sizes] for a in sizes]
    ).astype(np.float64)
    assert page["sharpness"] == pytest.approx(np.linalg.eigvalsh((whole + whole.T) / 2)[-1], rel=1e-3)


def test_each_jacobian_is_that_of_its_sample(page):
    for i in (0, 31):
        alone = func.jacrev(page["predict"])(page["x"][i])
        np.testing.assert_allclose(page["jacobians"][i].detach().numpy(), alone.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_the_models_of_an_ensemble_train_as_if_alone(page):
    ampkit.manual_seed(3)
    models = [nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)) for _ in range(2)]
    stacked, _ = func.stack_module_state(models)
    together = optim.AdamW(stacked.values(), lr=1e-2)
    for _ in range(3):
        func.vmap(lambda p: page["one"](p, {}))(stacked).sum().backward()
        together.step()
        together.zero_grad()
    for i, model in enumerate(models):
        alone = optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            (model(page["x"]) - page["y"]).square().mean().backward()
            alone.step()
            alone.zero_grad()
        for name, parameter in model.named_parameters():
            np.testing.assert_allclose(stacked[name][i].detach().numpy(), parameter.detach().numpy(), atol=1e-5)
    assert page["losses"][-1] < 0.8 * page["losses"][0]


def test_forward_gradients_are_the_gradient_in_the_mean(page):
    ampkit.manual_seed(0)
    exact = flat(func.grad(page["loss"])(page["params"], page["x"], page["y"]))
    mean = np.mean([flat(page["forward_gradient"]()) for _ in range(300)], 0)
    # the variance of an estimate is about |exact|^2 per component
    assert np.linalg.norm(mean - exact) < 1.5 * np.linalg.norm(exact) * math.sqrt(exact.size / 300)
    assert np.dot(mean, exact) > 0.5 * np.dot(exact, exact)


def test_the_sensitivity_of_a_decay_is_known(page):
    assert page["sensitivity"].item() == pytest.approx(-math.exp(-0.7), rel=1e-5)


def test_the_gradient_through_a_step_is_that_of_finite_differences(page):
    params, x, y = page["params"], page["x"], page["y"]
    ampkit.manual_seed(1)
    v = {name: ops.randn_like(p) for name, p in params.items()}
    slope = sum(float((page["meta_gradient"][name] * v[name]).sum()) for name in v)
    wide = {name: p.double() for name, p in params.items()}
    h = 1e-4
    ends = [
        page["after_one_step"]({n: p + s * h * v[n].double() for n, p in wide.items()}, x.double(), y.double())
        for s in (1, -1)
    ]
    assert slope == pytest.approx((ends[0].item() - ends[1].item()) / (2 * h), rel=2e-3)
