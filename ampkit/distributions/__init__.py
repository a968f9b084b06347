"""Probability distributions with PyTorch's names: samples, log-probabilities, entropies, divergences, transforms.

policy = ampkit.distributions.Categorical(logits=model(state))
action = policy.sample()
loss = -policy.log_prob(action) * reward
"""

import sys as _sys

from ..base.missing_names import missing_in_module as _missing_in_module
from . import constraint_registry as constraint_registry
from . import constraints as constraints
from . import divergences as _divergences  # registers them
from . import transforms as transforms
from .beta import Beta, Dirichlet, Kumaraswamy
from .constraint_registry import biject_to, transform_to
from .continuous import Exponential, Laplace, Normal, Uniform
from .continuous_bernoulli import ContinuousBernoulli
from .counts import Binomial, Geometric, Multinomial, NegativeBinomial, Poisson
from .discrete import Bernoulli, Categorical, OneHotCategorical, OneHotCategoricalStraightThrough
from .distribution import Distribution, ExponentialFamily, Independent
from .extreme_value import GeneralizedPareto, Gumbel, Pareto, Weibull
from .gamma import Chi2, FisherSnedecor, Gamma, InverseGamma
from .kl import kl_divergence, register_kl
from .mixture import MixtureSameFamily
from .multivariate_normal import LowRankMultivariateNormal, MultivariateNormal
from .random_matrices import LKJCholesky, Wishart
from .relaxed import RelaxedBernoulli, RelaxedOneHotCategorical
from .student import Cauchy, StudentT
from .transformed import HalfCauchy, HalfNormal, LogisticNormal, LogNormal, TransformedDistribution
from .transforms import *
from .transforms import __all__ as _transforms
from .von_mises import VonMises

__all__ = [
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ContinuousBernoulli", "Dirichlet",
    "Distribution", "Exponential", "ExponentialFamily", "FisherSnedecor", "Gamma", "GeneralizedPareto", "Geometric",
    "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "InverseGamma", "Kumaraswamy", "LKJCholesky", "Laplace",
    "LogNormal", "LogisticNormal", "LowRankMultivariateNormal", "MixtureSameFamily", "Multinomial",
    "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical", "OneHotCategoricalStraightThrough",
    "Pareto", "Poisson", "RelaxedBernoulli", "RelaxedOneHotCategorical", "StudentT", "TransformedDistribution",
    "Uniform", "VonMises", "Weibull", "Wishart", "biject_to", "kl_divergence", "register_kl", "transform_to",
]  # fmt: skip
__all__ += _transforms


def __getattr__(name: str) -> None:
    raise _missing_in_module("torch.distributions", _sys.modules[__name__], name)
