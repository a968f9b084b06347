"""`vmap` under policies with a recipe below 16 bits: codes, scales and results are those of each sample alone."""

import numpy as np
import pytest

import ampkit
from ampkit import Policy, StateError, autocast, func, nn


@pytest.fixture(autouse=True)
def example():
    """A perceptron, its weights and three samples of unlike scales on the device of the test."""
    global NET, WEIGHTS, X
    ampkit.manual_seed(0)
    NET = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 32))
    WEIGHTS = {name: p.detach() for name, p in NET.named_parameters()}
    X = ampkit.randn(3, 2, 32) * ampkit.tensor([1.0, 4.0, 0.01]).reshape(3, 1, 1)
    yield
    del NET, WEIGHTS, X


def loss(weights, x):
    return func.functional_call(NET, weights, (x,)).square().sum()


def same(a, b):
    return a.dtype == b.dtype and np.array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize(
    ("family", "recipe"),
    [("float8", "current"), ("float8", "rowwise"), ("float8", "blockwise"), ("float8", "mxfp8"), ("int8", "int8")],
)
def test_samples_have_their_own_scales(family, recipe):
    with autocast(policy=Policy(family, recipe=recipe)):
        of_weights = func.vmap(func.grad(loss), (None, 0))(WEIGHTS, X)
        of_input = func.vmap(func.grad(loss, 1), (None, 0))(WEIGHTS, X)
        out = func.vmap(lambda x: func.functional_call(NET, WEIGHTS, (x,)))(X)
        for i in range(3):
            alone = func.grad(loss)(WEIGHTS, X[i])
            assert all(same(of_weights[name][i], alone[name]) for name in alone)
            assert same(of_input[i], func.grad(loss, 1)(WEIGHTS, X[i]))
            assert same(out[i], func.functional_call(NET, WEIGHTS, (X[i],)))


def test_second_derivatives_are_as_exact_as_without_vmap():
    def hessian(x):
        return func.hessian(lambda x: loss(WEIGHTS, x))(x)

    rows = X[:2, 0]
    with autocast(policy=Policy("float8", recipe="current")):
        mapped, alone = func.vmap(hessian)(rows), hessian(rows[1])
    exact = hessian(rows[1])
    error = [float((found - exact).norm() / exact.norm()) for found in (mapped[1], alone)]
    assert 0 < error[0] < 1.2 * error[1]


def test_weights_of_each_sample():
    stacked = {name: ampkit.stack([w, 3 * w]) for name, w in WEIGHTS.items()}
    with autocast(policy=Policy("float8", recipe="current")):
        found = func.vmap(func.grad(loss), (0, None))(stacked, X[0])
        alone = func.grad(loss)({name: w[1] for name, w in stacked.items()}, X[0])
    assert all(same(found[name][1], alone[name]) for name in alone)


def test_delayed_scaling_takes_a_step_per_sample():
    def histories(call):
        net = nn.Sequential(nn.Linear(32, 4))
        with ampkit.no_grad():
            net[0].weight.fill_(0.5)
        with autocast(policy=Policy("float8", recipe="delayed")):
            call(net)
        return net.state_dict()["0.weight.delayed_scaling"]

    mapped = histories(lambda net: func.vmap(net)(X))
    assert same(mapped, histories(lambda net: [net(x) for x in X]))


def test_stochastic_rounding_draws_as_randomness_says():
    twice = ampkit.stack([X[0], X[0]])

    def found(randomness):
        with autocast(policy=Policy("float4", recipe="nvfp4")):
            return func.vmap(func.grad(loss), (None, 0), randomness=randomness)(WEIGHTS, twice)["0.weight"]

    equal, unlike = found("same"), found("different")
    assert same(equal[0], equal[1])
    assert not same(unlike[0], unlike[1])
    with pytest.raises(StateError, match="randomness"):
        found("error")
