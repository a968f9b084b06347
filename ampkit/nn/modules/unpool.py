"""Adaptive maxima, unpooling, and pools by a power mean."""

from __future__ import annotations

from typing import Any

from ampkit import ops
from ampkit.core.tensor import Tensor

from ..module import Module


class AdaptiveMaxPool2d(Module):
    """The largest value of each of output_size windows that cover the image: [N, C, H, W] -> [N, C, *output_size].

    output_size: an integer or two; None keeps that axis. return_indices=True gives (values, flat positions in H W).
    """

    def __init__(self, output_size: Any, return_indices: bool = False):
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: Tensor) -> Any:
        return ops.adaptive_max_pool2d(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(AdaptiveMaxPool2d):
    """The largest value of each of output_size windows: [N, C, L] -> [N, C, output_size]; see AdaptiveMaxPool2d."""

    def forward(self, input: Tensor) -> Any:
        return ops.adaptive_max_pool1d(input, self.output_size, self.return_indices)


class AdaptiveMaxPool3d(AdaptiveMaxPool2d):
    """The largest value of each of output_size windows: [N, C, D, H, W] -> [N, C, *output_size]."""

    def forward(self, input: Tensor) -> Any:
        return ops.adaptive_max_pool3d(input, self.output_size, self.return_indices)


class MaxUnpool2d(Module):
    """Zeros with input at the places that MaxPool2d(return_indices=True) named: [N, C, H, W] -> [N, C, H', W'].

    kernel_size, stride and padding: the pool's; they say the size, of several the smallest, unless forward is told.
    """

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        """output_size: (H', W') or the whole shape."""
        return ops.max_unpool2d(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(MaxUnpool2d):
    """Zeros with input at the places that MaxPool1d(return_indices=True) named; see MaxUnpool2d."""

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        """output_size: (L',) or the whole shape."""
        return ops.max_unpool1d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool3d(MaxUnpool2d):
    """Zeros with input at the places that MaxPool3d(return_indices=True) named; see MaxUnpool2d."""

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        """output_size: (D', H', W') or the whole shape."""
        return ops.max_unpool3d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class LPPool2d(Module):
    """The root of each window's sum of powers: input [N, C, H, W] -> [N, C, H', W'].

    norm_type: the power. stride is the kernel_size unless given.
    """

    def __init__(self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False):
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return ops.lp_pool2d(input, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        sizes = f"kernel_size={self.kernel_size}, stride={self.stride}"
        return f"norm_type={self.norm_type}, {sizes}, ceil_mode={self.ceil_mode}"


class LPPool1d(LPPool2d):
    """The root of each window's sum of powers: input [N, C, L] -> [N, C, windows]; see LPPool2d."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.lp_pool1d(input, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class LPPool3d(LPPool2d):
    """The root of each window's sum of powers: input [N, C, D, H, W] -> [N, C, ...]; see LPPool2d."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.lp_pool3d(input, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)
