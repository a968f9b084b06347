"""A case of each distribution and transform, for a library with PyTorch's interface, and what it answers there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

A, B, C = [0.4, 1.3, 2.6], [2.1, 0.6, 1.2], [-0.7, 0.2, 1.6]
P, Q = [0.2, 0.5, 0.85], [[0.1, 0.2, 0.3, 0.4], [0.25, 0.05, 0.6, 0.1]]
COV = [[2.0, 0.3, -0.2], [0.3, 1.0, 0.1], [-0.2, 0.1, 0.5]]
POSITIVE, REAL, UNIT = [[0.3, 1.2, 2.4], [1.7, 0.2, 0.9]], [[0.3, -1.2, 2.4], [-1.7, 0.2, 0.9]], [P, [0.6, 0.3, 0.1]]
COUNTS = [[0.0, 2.0, 5.0], [3.0, 1.0, 4.0]]
VECTORS = [[0.1, -0.5, 1.2], [1.0, 0.3, -0.8]]
FACTOR = [[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.6, 0.8]]

# name -> (how it is made by a module of distributions and a function to tensors, values)
MAKE: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "Bernoulli": (lambda d, t: d.Bernoulli(t(P)), [[0.0, 1.0, 1.0]]),
    "Beta": (lambda d, t: d.Beta(t(A), t(B)), UNIT),
    "Binomial": (lambda d, t: d.Binomial(6, t(P)), COUNTS),
    "Binomial by logits": (lambda d, t: d.Binomial(6, logits=t(C)), COUNTS),
    "Categorical": (lambda d, t: d.Categorical(t(Q)), [[0.0, 3.0], [2.0, 1.0]]),
    "Cauchy": (lambda d, t: d.Cauchy(t(C), t(B)), REAL),
    "Chi2": (lambda d, t: d.Chi2(t(B)), POSITIVE),
    "ContinuousBernoulli": (lambda d, t: d.ContinuousBernoulli(t([0.2, 0.4996, 0.85])), UNIT),
    "Dirichlet": (lambda d, t: d.Dirichlet(t([A, B])), [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]),
    "Exponential": (lambda d, t: d.Exponential(t(B)), POSITIVE),
    "FisherSnedecor": (lambda d, t: d.FisherSnedecor(t([3.0, 1.0, 5.0]), t([4.5, 6.0, 1.0])), POSITIVE),
    "Gamma": (lambda d, t: d.Gamma(t(A), t(B)), POSITIVE),
    "GeneralizedPareto": (lambda d, t: d.GeneralizedPareto(t([0.0] * 3), t(B), t([0.2, -0.1, 0.0])), POSITIVE),
    "Geometric": (lambda d, t: d.Geometric(t(P)), COUNTS),
    "Gumbel": (lambda d, t: d.Gumbel(t(C), t(B)), REAL),
    "HalfCauchy": (lambda d, t: d.HalfCauchy(t(B)), POSITIVE),
    "HalfNormal": (lambda d, t: d.HalfNormal(t(B)), POSITIVE),
    "Independent": (lambda d, t: d.Independent(d.Gamma(t(A), t(B)), 1), POSITIVE),
    "InverseGamma": (lambda d, t: d.InverseGamma(t([2.5, 0.7, 1.2]), t(B)), POSITIVE),
    "Kumaraswamy": (lambda d, t: d.Kumaraswamy(t(B), t(A)), UNIT),
    "LKJCholesky": (lambda d, t: d.LKJCholesky(3, t([0.6, 1.0, 2.5])), [FACTOR]),
    "Laplace": (lambda d, t: d.Laplace(t(C), t(B)), REAL),
    "LogNormal": (lambda d, t: d.LogNormal(t(C), t(B)), POSITIVE),
    "LogisticNormal": (lambda d, t: d.LogisticNormal(t(C), t(B)), Q),
    "LowRankMultivariateNormal": (
        lambda d, t: d.LowRankMultivariateNormal(t(C), t([[1.0], [-0.4], [0.2]]), t(B)),
        VECTORS,
    ),
    "MixtureSameFamily": (lambda d, t: d.MixtureSameFamily(d.Categorical(t(P)), d.Normal(t(C), t(B))), [0.3, -2.0]),
    "Multinomial": (lambda d, t: d.Multinomial(4, t(Q)), [[1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 3.0, 0.0]]),
    "MultivariateNormal": (lambda d, t: d.MultivariateNormal(t(C), t(COV)), VECTORS),
    "MultivariateNormal by precision": (lambda d, t: d.MultivariateNormal(t(C), precision_matrix=t(COV)), VECTORS),
    "NegativeBinomial": (lambda d, t: d.NegativeBinomial(t([0.0, 2.5, 1.0]), t(P)), COUNTS),
    "Normal": (lambda d, t: d.Normal(t(C), t(B)), REAL),
    "OneHotCategorical": (lambda d, t: d.OneHotCategorical(t(Q)), [[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]),
    "Pareto": (lambda d, t: d.Pareto(t([0.1, 0.2, 0.3]), t([0.8, 1.5, 2.4])), POSITIVE),
    "Poisson": (lambda d, t: d.Poisson(t(A)), COUNTS),
    "RelaxedBernoulli": (lambda d, t: d.RelaxedBernoulli(t(0.7), t(P)), UNIT),
    "RelaxedOneHotCategorical": (lambda d, t: d.RelaxedOneHotCategorical(t(0.7), t(Q)), Q),
    "StudentT": (lambda d, t: d.StudentT(t([0.9, 1.5, 4.0]), t(C), t(B)), REAL),
    "TransformedDistribution": (
        lambda d, t: d.TransformedDistribution(d.Normal(t(C), t(B)), [d.TanhTransform(), d.AffineTransform(1.0, -2.0)]),
        UNIT,
    ),
    "Uniform": (lambda d, t: d.Uniform(t(C), t([1.1, 0.9, 2.5])), [[0.3, 0.2, 2.4]]),
    "VonMises": (lambda d, t: d.VonMises(t(C), t(B)), REAL),
    "Weibull": (lambda d, t: d.Weibull(t(B), t([1.4, 2.3, 3.0])), POSITIVE),
    "Wishart": (lambda d, t: d.Wishart(t([3.5, 5.0]), t(COV)), [COV]),
}
# PyTorch's mode of a Kumaraswamy distribution is NaN; it has none of a GeneralizedPareto in some cases.
MOMENTS = ("mean", "mode", "variance")
SKIPPED = {("Kumaraswamy", "mode")}

# Pairs with a divergence, beside each distribution with itself.
PAIRS = [
    (p, q)
    for p, names in {
        "Bernoulli": "Poisson", "Beta": "ContinuousBernoulli Exponential Gamma Normal Pareto Uniform",
        "ContinuousBernoulli": "Exponential Normal Pareto Uniform", "Exponential": "Beta Gamma Gumbel Normal Pareto",
        "Gamma": "Exponential Gumbel Normal Uniform", "Gumbel": "Gamma Normal", "Laplace": "Beta Normal",
        "LowRankMultivariateNormal": "MultivariateNormal", "MultivariateNormal": "LowRankMultivariateNormal",
        "Normal": "Gumbel Laplace Pareto Uniform", "Pareto": "Exponential Gamma Normal", "Poisson": "Bernoulli",
        "Uniform": "Beta ContinuousBernoulli Exponential Gamma Gumbel Normal Pareto",
    }.items()
    for q in names.split()
]  # fmt: skip
TRANSFORMS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "abs": (lambda d: d.AbsTransform(), REAL),
    "affine": (lambda d: d.AffineTransform(0.5, -2.0), REAL),
    "affine of vectors": (lambda d: d.AffineTransform(0.5, -2.0, event_dim=1), REAL),
    "power": (lambda d: d.PowerTransform(2.5), POSITIVE),
    "sigmoid": (lambda d: d.SigmoidTransform(), REAL),
    "softplus": (lambda d: d.SoftplusTransform(), REAL),
    "tanh": (lambda d: d.TanhTransform(), REAL),
    "softmax": (lambda d: d.SoftmaxTransform(), REAL),
    "stick breaking": (lambda d: d.StickBreakingTransform(), REAL),
    "lower Cholesky": (lambda d: d.LowerCholeskyTransform(), COV),
    "positive definite": (lambda d: d.PositiveDefiniteTransform(), COV),
    "Cholesky of correlations": (lambda d: d.CorrCholeskyTransform(), REAL),
    "cdf": (lambda d: d.CumulativeDistributionTransform(d.Laplace(0.0, 1.0)), REAL),
    "reshape": (lambda d: d.ReshapeTransform((2, 3), (6,)), REAL),
    "independent": (lambda d: d.IndependentTransform(d.ExpTransform(), 1), REAL),
    "cat": (lambda d: d.CatTransform([d.ExpTransform(), d.TanhTransform()], -1, [1, 2]), REAL),
    "stack": (lambda d: d.StackTransform([d.ExpTransform(), d.TanhTransform()], 0), REAL),
    "composed": (
        lambda d: d.ComposeTransform([d.AffineTransform(1.0, 2.0), d.StickBreakingTransform(), d.ExpTransform()]),
        REAL,
    ),
    "onto an interval": (lambda d: d.biject_to(d.constraints.interval(-1.0, 2.0)), REAL),
    "onto numbers below": (lambda d: d.biject_to(d.constraints.less_than(3.0)), REAL),
    "onto vectors of sum 1": (lambda d: d.biject_to(d.constraints.simplex), REAL),
    "to vectors of sum 1": (lambda d: d.transform_to(d.constraints.simplex), REAL),
    "to triangles": (lambda d: d.transform_to(d.constraints.lower_cholesky), COV),
    "to positive vectors": (lambda d: d.transform_to(d.constraints.independent(d.constraints.positive, 1)), REAL),
}


def answers(d: Any, t: Any, name: str, refused: tuple[type[Exception], ...]) -> dict[str, Any]:
    """What the distribution of a name answers, by the answer's name; without what raises one of `refused`."""
    make, values = MAKE[name]
    made = make(d, t)
    asks = {what: lambda what=what: getattr(made, what) for what in MOMENTS if (name, what) not in SKIPPED}
    asks |= {"entropy": made.entropy, "log_prob": lambda: made.log_prob(t(values))}
    asks |= {"cdf": lambda: made.cdf(t(values)), "icdf": lambda: made.icdf(t(UNIT))}
    asks |= {"kl": lambda: d.kl_divergence(made, made)}
    wide = made.expand((2, *made.batch_shape))
    asks |= {"log_prob once expanded": lambda: wide.log_prob(t(values)).sum(0)}
    found = {}
    for what, ask in asks.items():
        try:
            found[what] = ask().tolist()
        except refused:
            continue
    return found


def transformed(d: Any, t: Any, name: str, refused: tuple[type[Exception], ...]) -> dict[str, Any]:
    """What the transform of a name makes of its values, back again, and the logarithm of its determinant."""
    make, values = TRANSFORMS[name]
    made, x = make(d), t(values)
    y = made(x)
    found = {"y": y.tolist(), "x": made.inv(y).tolist(), "shape": list(made.forward_shape(x.shape))}
    try:
        return {**found, "log_abs_det": made.log_abs_det_jacobian(x, y).tolist()}
    except refused:
        return found
