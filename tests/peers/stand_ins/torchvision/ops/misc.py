"""Modules of torchvision.ops."""

from torch import nn


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """A batch norm by its running statistics."""

    def forward(self, x):
        return nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, False, 0, self.eps
        )
