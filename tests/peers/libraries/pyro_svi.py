"""Stochastic variational inference of a Bayesian regression, with a guide whose draws are means, and log-densities."""

import pyro
import pyro.distributions as dist
import torch
from job import numbers, say
from pyro.infer import SVI, Trace_ELBO
from torch.distributions import constraints

PACKAGES = ("pyro-ppl",)

x, noise = numbers(40, 3), 0.1 * numbers(40, seed=1)
y = x @ torch.tensor([1.0, -0.5, 0.3]) + 0.2 + noise


class Fixed(dist.Delta):
    """A point, whose gradient is that of its place."""


def model(x, y):
    """Weights of a normal prior, a scale of a half-Cauchy one."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3), torch.ones(3)).to_event(1))
    bias = pyro.sample("bias", dist.Normal(0.0, 1.0))
    scale = pyro.sample("scale", dist.HalfCauchy(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ weight + bias, scale), obs=y)


def guide(x, y):
    """The places of the largest posterior density."""
    weight = pyro.param("weight_place", torch.zeros(3))
    bias = pyro.param("bias_place", torch.tensor(0.0))
    scale = pyro.param("scale_place", torch.tensor(1.0), constraint=constraints.positive)
    pyro.sample("weight", Fixed(weight).to_event(1))
    pyro.sample("bias", Fixed(bias))
    pyro.sample("scale", Fixed(scale))


pyro.set_rng_seed(0)
svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), loss=Trace_ELBO())
for _ in range(20):
    say("loss", svi.step(x, y))
for name in ("weight_place", "bias_place", "scale_place"):
    say(name, pyro.param(name))
say("log", dist.Gamma(2.0, 3.0).log_prob(torch.tensor([0.3, 1.2])))
say("log", dist.LKJCholesky(3, 1.5).log_prob(torch.eye(3)))
say("log", dist.Dirichlet(torch.ones(3) * 2).log_prob(torch.tensor([0.2, 0.3, 0.5])))

# A guide that draws: its losses are the library's own random numbers, so only that they fall is said.
automatic = pyro.infer.autoguide.AutoNormal(model)
pyro.clear_param_store()
svi = SVI(model, automatic, pyro.optim.Adam({"lr": 0.05}), loss=Trace_ELBO())
losses = [svi.step(x, y) for _ in range(60)]
say("fall", float(sum(losses[-10:]) < 0.5 * sum(losses[:10])))
