"""A patch-mixing network of einops' rearrange, reduce and layers, 5 steps of SGD."""

import torch
from einops import rearrange, reduce
from einops.layers.torch import Rearrange
from job import numbers, say, start
from torch import nn

PACKAGES = ("einops",)

mix = nn.Sequential(Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4), nn.Linear(48, 16), nn.GELU())
model = start(nn.Sequential(mix, nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images, target = numbers(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
for _ in range(5):
    scores = reduce(model(images), "b n k -> b k", "mean")
    loss = nn.functional.cross_entropy(scores, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say("loss", loss)
say("scores", rearrange(scores, "b k -> (b k)"))
