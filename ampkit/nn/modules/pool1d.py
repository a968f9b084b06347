"""Pooling of sequences, input [N, C, L] or [C, L]; as that of images, see `nn/modules/pool.py`."""

from __future__ import annotations

from typing import Any

from ampkit import ops
from ampkit.core.tensor import Tensor

from ..module import Module
from .pool import AdaptiveAvgPool2d, MaxPool2d


class MaxPool1d(MaxPool2d):
    """The largest value of each window: input [N, C, L] -> [N, C, windows]; see MaxPool2d."""

    def forward(self, input: Tensor) -> Any:
        return ops.max_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class AvgPool1d(Module):
    """The mean of each window: input [N, C, L] -> [N, C, windows]; see AvgPool2d."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        sizes = (self.kernel_size, self.stride, self.padding)
        return ops.avg_pool1d(input, *sizes, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """The mean over windows that divide a sequence into output_size parts: [N, C, L] -> [N, C, output_size]."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.adaptive_avg_pool1d(input, self.output_size)
