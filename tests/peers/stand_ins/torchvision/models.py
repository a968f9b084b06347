"""Small models under the names of large ones."""

from __future__ import annotations

import torch
from torch import nn


class VGG16_Weights:
    """Names of published weights: there are none here."""

    IMAGENET1K_V1 = None


class _Residual(nn.Module):
    """conv1 ... avgpool, fc, as torchvision's ResNets name them, with one convolution of 64 channels."""

    def __init__(self, num_classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.fc(torch.flatten(self.avgpool(self.relu(self.bn1(self.conv1(x)))), 1))


def resnet18(weights=None, pretrained=False, **options):
    """One residual network's ends, without its blocks."""
    return _Residual(**options)


resnet50 = resnet18


class _Features(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(12):
            layers += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True)]
        self.features = nn.Sequential(*layers[:31])


def vgg16(weights=None):
    """`features` of thirteen convolutions of 8 channels."""
    return _Features()
