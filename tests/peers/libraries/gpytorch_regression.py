"""Exact Gaussian process regression with an RBF kernel: marginal likelihood by Adam, then predictions."""

import gpytorch
import torch
from job import DTYPE, numbers, say

PACKAGES = ("gpytorch", "linear-operator")

x = torch.linspace(0, 1, 30).to(DTYPE)
y = (torch.sin(6 * x.float()) + 0.1 * numbers(30)).to(DTYPE)


class Model(gpytorch.models.ExactGP):
    """A constant mean and a scaled RBF kernel."""

    def __init__(self, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, given):
        """The prior at some points."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(given), self.covar_module(given))


likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = Model(likelihood)
model.train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for _ in range(10):
    optimizer.zero_grad()
    loss = -marginal(model(x), y)
    loss.backward()
    optimizer.step()
    say("loss", loss)
model.eval()
with torch.no_grad():
    found = likelihood(model(torch.linspace(0, 1.2, 7)))
say("mean", found.mean)
say("variance", found.variance)
