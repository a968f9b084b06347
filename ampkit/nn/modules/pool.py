"""Pooling over sliding windows: input [N, C, L], [N, C, H, W] or [N, C, D, H, W], or without N.

kernel_size, stride and padding are one number or one per spatial axis; stride is the kernel_size by default.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError
from ampkit.core.tensor import Tensor

from ..op_module import OpModule, Size, UnaryOpModule

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "FractionalMaxPool2d", "FractionalMaxPool3d",
    "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d",
    "MaxUnpool3d",
]  # fmt: skip


class _Windows(OpModule, op=ops.max_pool2d):
    kernel_size: Size
    stride: Size | None = None
    padding: Size = 0

    def __post_init__(self) -> None:
        if self.stride is None:
            self.stride = self.kernel_size


class MaxPool2d(_Windows, UnaryOpModule, op=ops.max_pool2d):
    """The maximum of each window: input [N, C, H, W] -> [N, C, H', W'].

    Padding counts as minus infinity. return_indices=True returns (values, flat indices into H W) instead.
    """

    dilation: Size = 1
    return_indices: bool = field(default=False, repr=False)
    ceil_mode: bool = False


class MaxPool1d(MaxPool2d, op=ops.max_pool1d):
    """The maximum of each window: input [N, C, L] -> [N, C, L']; see MaxPool2d."""


class MaxPool3d(MaxPool2d, op=ops.max_pool3d):
    """The maximum of each window: input [N, C, D, H, W] -> [N, C, D', H', W']; see MaxPool2d."""


class _AvgPool(_Windows, UnaryOpModule, op=ops.avg_pool1d):
    ceil_mode: bool = field(default=False, repr=False)
    count_include_pad: bool = field(default=True, repr=False)


class AvgPool1d(_AvgPool, op=ops.avg_pool1d):
    """The mean of each window: input [N, C, L] -> [N, C, L']; see AvgPool2d."""


class AvgPool2d(_AvgPool, op=ops.avg_pool2d):
    """The mean of each window: input [N, C, H, W] -> [N, C, H', W'].

    count_include_pad: padding zeros count as elements of the window. divisor_override: divide by this number in place
    of the number of elements.
    """

    divisor_override: int | None = field(default=None, repr=False)


class AvgPool3d(AvgPool2d, op=ops.avg_pool3d):
    """The mean of each window: input [N, C, D, H, W] -> [N, C, D', H', W']; see AvgPool2d."""


class LPPool2d(UnaryOpModule, op=ops.lp_pool2d):
    """The norm_type-norm of each window, the root of its sum of powers: input [N, C, H, W] -> [N, C, H', W']."""

    norm_type: float
    kernel_size: Size
    stride: Size | None = None
    ceil_mode: bool = False


class LPPool1d(LPPool2d, op=ops.lp_pool1d):
    """The norm_type-norm of each window: input [N, C, L] -> [N, C, L']; see LPPool2d."""


class LPPool3d(LPPool2d, op=ops.lp_pool3d):
    """The norm_type-norm of each window: input [N, C, D, H, W] -> [N, C, D', H', W']; see LPPool2d."""


class AdaptiveAvgPool2d(UnaryOpModule, op=ops.adaptive_avg_pool2d):
    """The mean of each of output_size windows that cover the image: input [N, C, H, W] -> [N, C, *output_size].

    output_size: an integer or two; None keeps the length of that axis.
    """

    output_size: Any


class AdaptiveAvgPool1d(AdaptiveAvgPool2d, op=ops.adaptive_avg_pool1d):
    """The mean of each of output_size windows: input [N, C, L] -> [N, C, output_size]."""


class AdaptiveAvgPool3d(AdaptiveAvgPool2d, op=ops.adaptive_avg_pool3d):
    """The mean of each of output_size windows: input [N, C, D, H, W] -> [N, C, *output_size]."""


class AdaptiveMaxPool2d(UnaryOpModule, op=ops.adaptive_max_pool2d):
    """The maximum of each of output_size windows that cover the image: [N, C, H, W] -> [N, C, *output_size].

    output_size: an integer or two; None keeps the length of that axis. return_indices=True returns (values, flat
    indices into H W).
    """

    output_size: Any
    return_indices: bool = field(default=False, repr=False)


class AdaptiveMaxPool1d(AdaptiveMaxPool2d, op=ops.adaptive_max_pool1d):
    """The maximum of each of output_size windows: [N, C, L] -> [N, C, output_size]; see AdaptiveMaxPool2d."""


class AdaptiveMaxPool3d(AdaptiveMaxPool2d, op=ops.adaptive_max_pool3d):
    """The maximum of each of output_size windows: [N, C, D, H, W] -> [N, C, *output_size]; see AdaptiveMaxPool2d."""


class FractionalMaxPool2d(UnaryOpModule, op=ops.fractional_max_pool2d):
    """The maximum of each window, whose steps are drawn at random: input [N, C, H, W] -> [N, C, *output_size].

    One of output_size and output_ratio, the share of each axis between 0 and 1; both are one number or two.
    return_indices=True returns (values, flat indices into H W). Raises ArgumentError for both or neither of the sizes.
    """

    kernel_size: Size
    output_size: Any = None
    output_ratio: Any = None
    return_indices: bool = field(default=False, repr=False)
    _random_samples: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.output_size is None) == (self.output_ratio is None):
            got = "neither" if self.output_size is None else "both"
            raise ArgumentError(type(self).__name__, "one of output_size and output_ratio", got)


class FractionalMaxPool3d(FractionalMaxPool2d, op=ops.fractional_max_pool3d):
    """The maximum of each window: input [N, C, D, H, W] -> [N, C, *output_size]; see FractionalMaxPool2d."""


class MaxUnpool2d(_Windows, op=ops.max_unpool2d):
    """Scatter input into zeros at the indices of MaxPool2d(return_indices=True): [N, C, H, W] -> [N, C, H', W'].

    kernel_size, stride and padding: the pool's. They imply the smallest output size that pools to [H, W].
    """

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        """output_size: the spatial axes or the whole shape, in place of the implied size."""
        sizes = self.kernel_size, self.stride, self.padding
        return self._op(input, indices, *sizes, output_size)


class MaxUnpool1d(MaxUnpool2d, op=ops.max_unpool1d):
    """Scatter input into zeros at the indices of MaxPool1d: [N, C, L] -> [N, C, L']; see MaxUnpool2d."""


class MaxUnpool3d(MaxUnpool2d, op=ops.max_unpool3d):
    """Scatter input into zeros at the indices of MaxPool3d: [N, C, D, H, W] -> [N, C, D', H', W']; see MaxUnpool2d."""
