"""Pooling of volumes, input [N, C, D, H, W] or [C, D, H, W]; as that of images, see `nn/modules/pool.py`."""

from __future__ import annotations

from typing import Any

from ampkit import ops
from ampkit.core.tensor import Tensor

from .pool import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d


class MaxPool3d(MaxPool2d):
    """The largest value of each window: input [N, C, D, H, W] -> [N, C, D', H', W']; see MaxPool2d."""

    def forward(self, input: Tensor) -> Any:
        return ops.max_pool3d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class AvgPool3d(AvgPool2d):
    """The mean of each window: input [N, C, D, H, W] -> [N, C, D', H', W']; see AvgPool2d."""

    def forward(self, input: Tensor) -> Tensor:
        sizes, counted = (self.kernel_size, self.stride, self.padding), (self.count_include_pad, self.divisor_override)
        return ops.avg_pool3d(input, *sizes, self.ceil_mode, *counted)


class AdaptiveAvgPool3d(AdaptiveAvgPool2d):
    """The mean over windows that divide the volume into output_size parts: [N, C, D, H, W] -> [N, C, *output_size]."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.adaptive_avg_pool3d(input, self.output_size)
