"""Probability distributions with PyTorch's names: samples, log-probabilities, entropies, divergences.

policy = ampkit.distributions.Categorical(logits=model(state))
action = policy.sample()
loss = -policy.log_prob(action) * reward
"""

from . import constraints as constraints
from .continuous import Exponential, Laplace, LogNormal, Normal, Uniform
from .discrete import Bernoulli, Categorical, OneHotCategorical
from .distribution import Distribution, Independent, kl_divergence, register_kl

__all__ = [
    "Bernoulli", "Categorical", "Distribution", "Exponential", "Independent", "Laplace", "LogNormal", "Normal",
    "OneHotCategorical", "Uniform", "kl_divergence", "register_kl",
]  # fmt: skip
