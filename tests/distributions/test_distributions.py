"""ampkit.distributions: densities, entropies and moments are SciPy's, divergences those of quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.base.errors import ShapeError
from ampkit.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Chi2,
    Dirichlet,
    Exponential,
    ExponentialFamily,
    Gamma,
    Gumbel,
    Independent,
    Laplace,
    LKJCholesky,
    LogNormal,
    Multinomial,
    Normal,
    OneHotCategorical,
    Poisson,
    Uniform,
    Wishart,
    kl_divergence,
    register_kl,
)

integrate = pytest.importorskip("scipy.integrate", reason="needs SciPy (extra `tune`)")
stats = pytest.importorskip("scipy.stats", reason="needs SciPy (extra `tune`)")

A, B = [0.3, 1.5, -2.0], [0.5, 1.0, 3.0]


def f64(values):
    return ampkit.tensor(values, dtype=ampkit.float64)


CASES = {
    "Normal": (lambda: Normal(f64(A), f64(B)), stats.norm(A, B)),
    "LogNormal": (lambda: LogNormal(f64(A), f64(B)), stats.lognorm(B, scale=np.exp(A))),
    "Uniform": (lambda: Uniform(f64(A), f64([1.0, 4.0, 2.5])), stats.uniform(A, np.subtract([1.0, 4.0, 2.5], A))),
    "Exponential": (lambda: Exponential(f64(B)), stats.expon(scale=np.divide(1, B))),
    "Laplace": (lambda: Laplace(f64(A), f64(B)), stats.laplace(A, B)),
}
POINTS = np.array([[0.4, 1.7, -1.0], [0.9, 3.0, 2.0], [0.35, 1.6, 0.1]])


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found.detach().numpy()), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_densities_moments_and_entropies_are_scipys(name):
    make, truth = CASES[name]
    ours = make()
    x = f64(POINTS)
    close(ours.log_prob(x), truth.logpdf(POINTS))
    close(ours.cdf(x), truth.cdf(POINTS))
    close(ours.icdf(f64([[0.1, 0.5, 0.9]] * 3).T), truth.ppf(np.array([[0.1, 0.5, 0.9]] * 3).T))
    close(ours.mean, truth.mean())
    close(ours.variance, truth.var())
    close(ours.stddev, truth.std())
    close(ours.entropy(), truth.entropy())


@pytest.mark.parametrize("name", CASES)
def test_samples_follow_the_distribution_and_their_gradients_the_parameters(name):
    make, truth = CASES[name]
    ours = make()
    ampkit.manual_seed(0)
    drawn = ours.sample((4000,)).numpy()
    assert drawn.shape == (4000, 3)
    for i in range(3):
        one = stats.kstest(drawn[:, i], lambda x, i=i: np.asarray(truth.cdf(np.stack([x] * 3, -1)))[..., i])
        assert one.pvalue > 1e-4
    given = [getattr(ours, n).clone().requires_grad_() for n in ours.arg_constraints]
    ampkit.manual_seed(1)
    sample = type(ours)(*given).rsample((5,))
    sample.sum().backward()
    for p in given:
        step = 1e-6
        ampkit.manual_seed(1)
        more = type(ours)(*[(q.detach() + step if q is p else q.detach()) for q in given]).rsample((5,))
        close_to = (more - sample.detach()).sum(0).numpy() / step
        np.testing.assert_allclose(p.grad.numpy(), close_to, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "p", "q", "low", "high"),
    [
        (Normal, (0.3, 0.5), (-1.0, 2.0), -8, 8),
        (LogNormal, (0.3, 0.5), (-1.0, 2.0), 1e-9, 60),
        (Uniform, (0.0, 1.0), (-1.0, 3.0), 0, 1 - 1e-12),
        (Exponential, (0.5,), (2.0,), 0, 120),
        (Laplace, (0.3, 0.5), (-1.0, 2.0), -30, 30),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_divergences_are_those_of_quadrature(kind, p, q, low, high):
    p, q = (kind(*map(f64, parameters)) for parameters in (p, q))

    def integrand(x):
        x = f64(float(x))
        return (p.log_prob(x).exp() * (p.log_prob(x) - q.log_prob(x))).item()

    expected, _ = integrate.quad(integrand, low, high, points=[0.3], limit=200)
    assert kl_divergence(p, q).item() == pytest.approx(expected, rel=1e-6)


def test_bernoulli_by_probabilities_and_by_logits():
    probs = np.array([0.1, 0.5, 0.97])
    for ours in (Bernoulli(f64(probs)), Bernoulli(logits=f64(np.log(probs / (1 - probs))))):
        for value in (0.0, 1.0):
            close(ours.log_prob(f64(value)), stats.bernoulli(probs).logpmf(value))
        close(ours.entropy(), stats.bernoulli(probs).entropy())
        close(ours.variance, probs * (1 - probs))
        other = Bernoulli(f64([0.3, 0.3, 0.3]))
        expected = probs * np.log(probs / 0.3) + (1 - probs) * np.log((1 - probs) / 0.7)
        close(kl_divergence(ours, other), expected)
        ampkit.manual_seed(0)
        assert np.abs(ours.sample((4000,)).mean(0).numpy() - probs).max() < 0.04
    assert Bernoulli(ampkit.tensor([0.5])).enumerate_support().tolist() == [[0.0], [1.0]]
    assert Bernoulli(ampkit.tensor([0.0, 1.0])).log_prob(ampkit.tensor([0.0, 1.0])).isfinite().all()


@pytest.mark.parametrize("kind", [Categorical, OneHotCategorical])
def test_categorical_by_weights_and_by_logits(kind):
    weights = np.array([[1.0, 2.0, 5.0], [0.2, 0.7, 0.1]])
    probs = weights / weights.sum(-1, keepdims=True)
    for ours in (kind(f64(weights)), kind(logits=f64(np.log(weights)))):
        close(ours.probs, probs)
        value = ampkit.tensor([2, 0])
        value = ops.one_hot(value, 3) if kind is OneHotCategorical else value
        close(ours.log_prob(value), np.log([probs[0, 2], probs[1, 0]]))
        close(ours.entropy(), stats.entropy(probs, axis=-1))
        close(
            kl_divergence(ours, kind(ops.ones(2, 3, dtype=ampkit.float64))), np.log(3) - stats.entropy(probs, axis=-1)
        )
        ampkit.manual_seed(0)
        drawn = ours.sample((2000,))
        counts = drawn if kind is OneHotCategorical else ops.one_hot(drawn, 3)
        assert drawn.shape[:2] == (2000, 2)
        assert np.abs(counts.double().mean(0).numpy() - probs).max() < 0.05


def test_a_policy_gradient_reaches_the_logits():
    logits = ampkit.zeros(4, 3, requires_grad=True)
    policy = Categorical(logits=logits)
    action = policy.sample()
    (-policy.log_prob(action).sum()).backward()
    expected = np.full((4, 3), 1 / 3) - np.eye(3)[action.numpy()]
    np.testing.assert_allclose(logits.grad.numpy(), expected, atol=1e-6)


def test_an_outcome_without_probability_makes_a_divergence_infinite_and_costs_nothing_itself():
    p, q = Categorical(ampkit.tensor([0.5, 0.5, 0.0])), Categorical(ampkit.tensor([1.0, 0.0, 0.0]))
    assert kl_divergence(p, q).item() == math.inf
    assert kl_divergence(q, p).item() == pytest.approx(math.log(2), rel=1e-5)


def test_independent_sums_over_the_axes_of_the_event():
    base = Normal(ampkit.zeros(4, 2, 3), ampkit.ones(4, 2, 3))
    ours = Independent(base, 2)
    assert (ours.batch_shape, ours.event_shape) == ((4,), (2, 3))
    x = ampkit.randn(4, 2, 3)
    assert ampkit.allclose(ours.log_prob(x), base.log_prob(x).sum((1, 2)))
    assert ours.rsample((7,)).shape == (7, 4, 2, 3)
    assert kl_divergence(ours, ours.expand((4,))).tolist() == [0.0] * 4


def test_parameters_are_numbers_or_tensors_and_expand_together():
    assert Normal(0, 1).sample().shape == ()
    ours = Normal(ampkit.zeros(3, 1), 2.0).expand((3, 5))
    assert ours.batch_shape == (3, 5) and ours.sample((2,)).shape == (2, 3, 5)
    assert Categorical(ampkit.ones(2, 3)).expand((4, 2)).sample((6,)).shape == (6, 4, 2)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Normal(0.0, -1.0), "Normal: needs scale above 0"),
        (lambda: Uniform(1.0, 1.0), "Uniform: needs high above low"),
        (lambda: Bernoulli(1.5), "Bernoulli: needs probs from 0 to 1"),
        (lambda: Categorical(ampkit.tensor([-1.0, 2.0])), "Categorical: needs probs from 0"),
        (lambda: Bernoulli(), "Bernoulli: needs probs or logits, got neither"),
        (lambda: Independent(Normal(0.0, 1.0), 1), "Independent: needs reinterpreted_batch_ndims from 0 to 0"),
    ],
    ids=range(6),
)
def test_parameters_out_of_range_are_refused(make, line):
    with pytest.raises(ampkit.ArgumentError, match=line):
        make()


def test_a_pair_without_a_formula_says_how_to_add_one():
    class Mine(Normal):
        pass

    with pytest.raises(ampkit.StateError, match="Normal and LogNormal\nhelp: @register_kl"):
        kl_divergence(Normal(0.0, 1.0), LogNormal(0.0, 1.0))
    register_kl(Mine, LogNormal)(lambda p, q: ampkit.tensor(3.0))
    assert kl_divergence(Mine(0.0, 1.0), LogNormal(0.0, 1.0)).item() == 3.0
    assert kl_divergence(Mine(0.0, 1.0), Normal(0.0, 1.0)).item() == 0.0


def test_certain_outcomes_are_infinitely_far_from_impossible_ones():
    for p, q, far in ((0.0, 1.0, math.inf), (1.0, 0.0, math.inf), (0.5, 0.0, math.inf), (0.0, 0.0, 0), (1.0, 1.0, 0)):
        assert kl_divergence(Bernoulli(p), Bernoulli(q)).item() == far


@pytest.mark.parametrize("family", [Bernoulli, Categorical, OneHotCategorical])
def test_probabilities_are_computed_only_where_something_asks_for_them(family):
    made = family(logits=f64([0.5, -1.0]))
    made.log_prob(family(logits=f64([0.5, -1.0])).sample())
    assert made.enumerate_support().shape[0] == 2 and made.param_shape == (2,)
    assert "probs" not in vars(getattr(made, "base_dist", made))


def test_a_number_is_a_value_only_where_PyTorch_takes_it():
    assert Gamma(2.0, 1.0).log_prob(3).item() == pytest.approx(stats.gamma(2).logpdf(3))
    assert Chi2(3.0).log_prob(1.5).item() == pytest.approx(stats.chi2(3).logpdf(1.5))
    assert Gumbel(0.5, 2.0).cdf(1.0).item() == pytest.approx(stats.gumbel_r(0.5, 2).cdf(1))
    for error in (TypeError, ValueError):
        with pytest.raises(error, match="Poisson.log_prob: needs a Tensor for `value`, got int"):
            Poisson(1.0).log_prob(1)


def test_the_entropy_of_an_exponential_family_is_that_of_its_formula():
    for made in (Beta(f64([2.0, 0.5]), f64([3.0, 1.5])), Dirichlet(f64([[2.0, 0.5, 1.0], [3.0, 4.0, 0.2]]))):
        np.testing.assert_allclose(ExponentialFamily.entropy(made).detach().numpy(), made.entropy().numpy(), rtol=1e-12)


def test_several_counts_have_no_common_support_to_enumerate():
    with pytest.raises(NotImplementedError, match="one total_count"):
        Binomial(f64([2.0, 3.0]), f64([0.5, 0.5])).enumerate_support()


def test_a_wishart_of_whole_degrees_has_the_dtype_of_its_matrix():
    made = Wishart(ampkit.tensor(2), f64([[1.0]]))
    assert made.df.dtype == made.sample().dtype == ampkit.float64


@pytest.mark.parametrize(
    "made",
    [
        lambda: OneHotCategorical(f64([0.2, 0.3, 0.5])),
        lambda: Multinomial(4, f64([0.2, 0.3, 0.5])),
        lambda: Dirichlet(f64([0.2, 0.3, 0.5])),
        lambda: LKJCholesky(3),
        lambda: Wishart(3.0, ampkit.eye(3, dtype=ampkit.float64)),
    ],
)
def test_an_event_of_another_shape_has_no_probability(made):
    one = made()
    assert one.log_prob(one.sample((2,))).shape == (2,)
    with pytest.raises(ShapeError, match=r"needs a value whose last axes are \(3.*\), got shape \(.*2,?\)"):
        one.log_prob(one.sample()[..., :2])
