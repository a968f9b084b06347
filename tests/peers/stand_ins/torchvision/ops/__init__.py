"""The part of torchvision.ops that scripts and timm name."""

from .misc import FrozenBatchNorm2d
