"""Distributions and transforms answer as PyTorch's in float64, by `python -m tests.peers.distributions`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from distribution_cases import MAKE, PAIRS, TRANSFORMS, answers, transformed

import ampkit
from ampkit import distributions

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "distributions.json").read_text())


def tensor(values):
    return ampkit.tensor(values, dtype=ampkit.float64)


@pytest.fixture(autouse=True)
def numbers_are_float64(monkeypatch):
    before = ampkit.get_default_dtype()
    ampkit.set_default_dtype(ampkit.float64)
    yield
    ampkit.set_default_dtype(before)


def need_equal(found, golden):
    for what, expected in golden.items():
        assert np.shape(found[what]) == np.shape(expected), what
        np.testing.assert_allclose(found[what], expected, 1e-7, 1e-9, err_msg=what)


@pytest.mark.parametrize("name", MAKE)
def test_a_distribution_answers_as_pytorchs(name):
    need_equal(answers(distributions, tensor, name, (ampkit.StateError,)), GOLDEN["distributions"][name])


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_a_divergence_is_pytorchs(p, q):
    made = [MAKE[name][0](distributions, tensor) for name in (p, q)]
    found = distributions.kl_divergence(*made)
    np.testing.assert_allclose(found.tolist(), GOLDEN["pairs"][f"{p} {q}"], 1e-7, 1e-9)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_and_its_determinant_are_pytorchs(name):
    need_equal(transformed(distributions, tensor, name, (ampkit.StateError,)), GOLDEN["transforms"][name])


@pytest.mark.parametrize("name", MAKE)
def test_samples_have_the_moments_and_the_support_of_the_distribution(name):
    make = MAKE[name][0]
    made = make(distributions, tensor)
    ampkit.manual_seed(3)
    drawn = made.sample((4000,))
    assert drawn.shape == (4000, *made.batch_shape, *made.event_shape)
    assert not drawn.requires_grad
    assert made.support.check(drawn[:100].double()).all()
    if made.has_rsample:
        assert made.rsample((2,)).shape == (2, *made.batch_shape, *made.event_shape)
    try:
        mean, spread = made.mean.numpy(), made.variance.numpy() ** 0.5
    except ampkit.StateError:
        return
    if name == "VonMises":
        drawn = (drawn - made.loc + math.pi) % (2 * math.pi) - math.pi + made.loc
        spread = math.pi + 0 * spread
    off = np.abs(drawn.double().numpy().mean(0) - mean)
    finite = np.isfinite(spread) & np.isfinite(mean)
    assert (off[finite] <= 5 * spread[finite] / 4000**0.5 + 1e-12).all()


@pytest.mark.parametrize(
    ("make", "start"),
    [
        (lambda a: distributions.Gamma(a, 1.3), [0.3, 2.0, 20.0]),
        (lambda a: distributions.Beta(a, 2.0), [0.3, 2.0, 20.0]),
        (lambda a: distributions.InverseGamma(a, 1.3), [6.0, 9.0]),
        (lambda a: distributions.Dirichlet(ampkit.stack([a, a * a], -1)), [0.3, 2.0]),
        (lambda a: distributions.Wishart(a, tensor([[2.0, 0.3], [0.3, 1.0]])), [3.0, 7.0]),
    ],
    ids=["Gamma", "Beta", "InverseGamma", "Dirichlet", "Wishart"],
)
def test_the_mean_gradient_of_samples_is_the_gradient_of_the_mean(make, start):
    # The gradient of one draw is checked against P below; here the wiring of each family.
    parameter = tensor(start).requires_grad_()
    (exact,) = ampkit.grad(make(parameter).mean.sum(), parameter)
    ampkit.manual_seed(0)
    (found,) = ampkit.grad(make(parameter).rsample((20000,)).mean(0).sum(), parameter)
    np.testing.assert_allclose(found.numpy(), exact.numpy(), rtol=0.05, atol=3e-3)


@pytest.mark.parametrize("a", [1e-3, 0.3, 1.0, 4.0, 30.0, 1e4])
def test_the_gradient_of_a_gamma_draw_keeps_the_probability_below_it(a):
    special = pytest.importorskip("scipy.special", reason="needs SciPy (extra `tune`)")
    ampkit.manual_seed(1)
    parameter = tensor([a] * 8).requires_grad_()
    drawn = distributions.draws.log_gamma(parameter, (8,))
    (slope,) = ampkit.grad(drawn.sum(), parameter)
    below = special.gammainc(a, np.exp(drawn.detach().numpy()))
    step, kept = a * 1e-4, (below > 1e-9) & (below < 1 - 1e-9)
    with np.errstate(all="ignore"):
        high, low = (np.log(special.gammaincinv(a + s, below)) for s in (step, -step))
        expected = (high - low) / (2 * step)
    kept &= np.isfinite(expected)
    np.testing.assert_allclose(slope.numpy()[kept], expected[kept], rtol=2e-4)


def test_special_functions_are_scipys():
    special = pytest.importorskip("scipy.special", reason="needs SciPy (extra `tune`)")
    a, x = np.meshgrid([1e-3, 0.4, 1.0, 7.0, 9.0, 300.0, 1e4], [1e-4, 0.3, 1.9, 2.0, 8.0, 25.0, 310.0, 9.9e3])
    for name in ("gammainc", "gammaincc"):
        found = getattr(ampkit.special, name)(tensor(a), tensor(x)).numpy()
        np.testing.assert_allclose(found, getattr(special, name)(a, x), rtol=1e-9, atol=1e-280, err_msg=name)
    y = np.array([-40.0, -8.0, -1.0, -0.3, 0.0, 0.2, 3.0, 12.0, 29.0, 31.0, 45.0])
    for name in ("i0", "i0e", "i1", "i1e", "log_ndtr"):
        found = getattr(ampkit.special, name)(tensor(y)).numpy()
        np.testing.assert_allclose(found, getattr(special, name)(y), rtol=1e-10, err_msg=name)
    p = np.array([0.0, 1e-300, 1e-9, 0.07, 0.2, 0.5, 0.93, 1.0])
    np.testing.assert_allclose(ampkit.special.ndtri(tensor(p)).numpy(), special.ndtri(p), rtol=1e-13)


def test_the_edges_of_the_incomplete_gamma_functions():
    a, x = tensor([0.0, 0.0, 1.0, 1.0, -1.0, math.inf, 2.0]), tensor([0.0, 1.0, 0.0, math.inf, 1.0, 1.0, -1.0])
    expected = [math.nan, 1.0, 0.0, 1.0, math.nan, 0.0, math.nan]
    np.testing.assert_array_equal(ampkit.special.gammainc(a, x).numpy(), expected)
    np.testing.assert_array_equal(ampkit.special.gammaincc(a, x).numpy(), 1 - np.array(expected))


def test_outside_of_the_support_the_density_is_zero_and_nan_stays_nan():
    for made, bad in [
        (distributions.Gamma(1.5, 1.0), -1.0),
        (distributions.Beta(2.0, 2.0), 1.5),
        (distributions.Poisson(2.0), 0.5),
        (distributions.Pareto(1.0, 2.0), 0.5),
        (distributions.LogNormal(0.0, 1.0), -2.0),
        (distributions.HalfCauchy(1.0), -2.0),
    ]:
        parameter = tensor(bad).requires_grad_()
        found = made.log_prob(parameter)
        assert found.item() == -math.inf
        assert math.isnan(made.log_prob(tensor(math.nan)).item())


def test_a_transform_with_a_cache_gives_back_the_very_value_it_was_made_of():
    transform = distributions.TanhTransform(cache_size=1)
    x = tensor([25.0])  # beyond what the inverse finds
    assert transform.inv(transform(x)) is x
    assert transform.with_cache(0) == transform


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: distributions.Gamma(-1.0, 1.0), "Gamma: needs concentration above 0"),
        (lambda: distributions.Dirichlet(tensor([1.0, -1.0])), "Dirichlet: needs concentration above 0"),
        (
            lambda: distributions.MultivariateNormal(tensor([0.0, 0.0]), tensor([[1.0, 2.0], [2.0, 1.0]])),
            "MultivariateNormal: needs covariance_matrix positive definite",
        ),
        (lambda: distributions.MultivariateNormal(tensor([0.0])), "needs one of covariance_matrix"),
        (lambda: distributions.Wishart(1.0, tensor([[1.0, 0.0], [0.0, 1.0]])), "Wishart: needs df above 1"),
        (lambda: distributions.LKJCholesky(1), "LKJCholesky: needs dim from 2"),
        (lambda: distributions.Poisson(2.0).rsample(), "Poisson.rsample: needs a distribution that has_rsample"),
        (lambda: distributions.transform_to(distributions.constraints.boolean), "needs a constraint with a transform"),
        (lambda: distributions.TransformedDistribution(distributions.Normal(0.0, 1.0), [None]), "needs transforms as"),
        (lambda: ampkit.poisson(tensor([-1.0])), "poisson: needs rates from 0"),
        (lambda: ampkit.binomial(tensor([1.5]), tensor([0.5])), "binomial: needs whole counts from 0"),
    ],
    ids=range(11),
)
def test_what_is_wrong_is_said_in_one_line(make, line):
    with pytest.raises(ampkit.AmpkitError, match=line):
        make()


def test_set_default_validate_args_is_for_all_distributions():
    distributions.Distribution.set_default_validate_args(False)
    try:
        distributions.Gamma(-1.0, 1.0)
    finally:
        distributions.Distribution.set_default_validate_args(True)
    with pytest.raises(ampkit.ArgumentError):
        distributions.Gamma(-1.0, 1.0)


def test_a_property_that_is_read_off_the_tape_is_on_it_for_later_readers():
    logits = tensor([0.3, -0.2]).requires_grad_()
    made = distributions.Bernoulli(logits=logits)
    with ampkit.no_grad():
        assert made.probs.shape == (2,)
    assert made.mean.requires_grad
