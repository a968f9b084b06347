"""Learning-rate schedules with PyTorch's names, signatures and values: closed forms of the optimizer's step count n.

A step that a GradScaler skipped does not count.
"""

from ..optimizer import Optimizer as Optimizer
from .chain import ChainedScheduler, SequentialLR
from .cyclic import CyclicLR, OneCycleLR
from .decay import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from .plateau import ReduceLROnPlateau
from .schedule import LRScheduler
from .warmup_stable_decay import WarmupStableDecayLR

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR",
    "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR",
    "ReduceLROnPlateau", "SequentialLR", "StepLR", "WarmupStableDecayLR",
]  # fmt: skip
