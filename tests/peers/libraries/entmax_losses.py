"""Sparse attention by entmax, sparsemax and a trained alpha, and their losses: values, gradients, 5 steps of Adam."""

import torch
from entmax import entmax15, entmax15_loss, entmax_bisect, entmax_bisect_loss, normmax_bisect, sparsemax, sparsemax_loss
from job import numbers, say, start
from torch import nn

PACKAGES = ("entmax",)

scores = numbers(6, 9).requires_grad_()
for name, map_ in (
    ("sparsemax", sparsemax),
    ("entmax15", entmax15),
    ("bisect", entmax_bisect),
    ("norm", normmax_bisect),
):
    found = map_(scores, dim=-1) if name != "norm" else map_(scores, alpha=2, dim=-1)
    (gradient,) = torch.autograd.grad((found * numbers(6, 9, seed=1)).sum(), scores)
    say(name, found, gradient)
target = torch.tensor([0, 3, 8, 1, 2, 2])
for name, loss in (("sparsemax", sparsemax_loss), ("entmax15", entmax15_loss), ("bisect", entmax_bisect_loss)):
    value = loss(scores, target)
    (gradient,) = torch.autograd.grad(value.sum(), scores)
    say(f"{name}_loss", value, gradient)


class Attention(nn.Module):
    """One head whose weights are sparse by as much as it learns."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Linear(8, 24)
        self.alpha = nn.Parameter(torch.tensor(1.4))

    def forward(self, x):
        """Values, weighted."""
        q, k, v = self.parts(x).chunk(3, -1)
        return entmax_bisect(q @ k.mT / 8**0.5, self.alpha, n_iter=40) @ v


model = Attention()
start(model.parts)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
x = numbers(3, 5, 8)
for _ in range(5):
    loss = (model(x) - x.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say("loss", loss)
say("alpha", model.alpha)
