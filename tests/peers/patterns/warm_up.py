"""8 steps of a VGG with batch norms by Nesterov momentum, its rate warmed up in each step: prints the losses.

    python [-m ampkit.as_torch] tests/peers/patterns/warm_up.py [--float64] [--plain] [--steps N]

--plain: convolutions without oneDNN, in PyTorch. The same weights and data for all.
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import _LRScheduler


class WarmUp(_LRScheduler):
    def __init__(self, optimizer, total_iters, last_epoch=-1):
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [rate * self.last_epoch / (self.total_iters + 1e-8) for rate in self.base_lrs]


def network():
    layers, width = [], 3
    for n in (32, "pool", 64, "pool", 128, 128, "pool", 256, 256, "pool", 256, "pool"):
        if n == "pool":
            layers.append(nn.MaxPool2d(2, 2))
        else:
            layers += [nn.Conv2d(width, n, 3, padding=1, bias=False), nn.BatchNorm2d(n), nn.ReLU(inplace=True)]
            width = n
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 100))


def losses(dtype, steps):
    torch.set_default_dtype(dtype)
    draw = np.random.default_rng(0)
    net = network()
    with torch.no_grad():
        for p in net.parameters():
            if p.ndim > 1:
                values = draw.uniform(-1, 1, tuple(p.shape)) / np.prod(p.shape[1:]) ** 0.5
                p.copy_(torch.tensor(values.astype("float32")).to(dtype))
        net[-1].bias.zero_()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)
    torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[60, 120, 160], gamma=0.2)
    warm_up = WarmUp(optimizer, 4)
    for step in range(steps):
        images = torch.tensor(draw.standard_normal((8, 3, 32, 32)).astype("float32")).to(dtype)
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(net(images), torch.tensor(draw.integers(0, 100, 8)))
        loss.backward()
        optimizer.step()
        yield loss.item()
        if step < 4:
            warm_up.step()


if __name__ == "__main__":
    if "--plain" in sys.argv:
        torch.backends.mkldnn.set_flags(False)
    count = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 8
    print(*losses(torch.float64 if "--float64" in sys.argv else torch.float32, count))
