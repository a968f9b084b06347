"""Windows of images as columns and back, and padding."""

from __future__ import annotations

from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError
from ampkit.core.tensor import Tensor

from ..module import Module


class Unfold(Module):
    """The windows of images as columns: input [N, C, H, W] -> [N, C * kernel, windows]; see `ops.unfold`."""

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1):
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return ops.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Unfold):
    """The images whose windows are columns, overlaps summed: input [N, C * kernel, windows] -> [N, C, *output_size]."""

    def __init__(self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1):
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return ops.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


class _Pad(Module):
    # padding: one width, or (before, after) of the last axis, then the one before it.
    axes = 0

    def __init__(self, padding: Any, value: float = 0.0):
        super().__init__()
        widths = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * (2 * self.axes)
        if len(widths) != 2 * self.axes or not all(isinstance(n, int) for n in widths):
            raise ArgumentError(type(self).__name__, f"padding as an integer or {2 * self.axes} of them", repr(padding))
        self.padding, self.value = widths, value

    def forward(self, input: Tensor) -> Tensor:
        return ops.pad(input, self.padding, value=self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_Pad):
    """`value` around the last axis: input [..., L] -> [..., L']. padding: a width, or (left, right)."""

    axes = 1

    def __init__(self, padding: Any, value: float):
        super().__init__(padding, value)


class ConstantPad2d(ConstantPad1d):
    """`value` around the last two axes: input [..., H, W] -> [..., H', W']. padding: (left, right, top, bottom)."""

    axes = 2


class ConstantPad3d(ConstantPad1d):
    """`value` around the last three axes. padding: a width, or (left, right, top, bottom, front, back)."""

    axes = 3


class ZeroPad1d(_Pad):
    """Zeros around the last axis; see ConstantPad1d."""

    axes = 1

    def __init__(self, padding: Any):
        super().__init__(padding)

    def extra_repr(self) -> str:
        return str(self.padding)


class ZeroPad2d(ZeroPad1d):
    """Zeros around the last two axes; see ConstantPad2d."""

    axes = 2


class ZeroPad3d(ZeroPad1d):
    """Zeros around the last three axes; see ConstantPad3d."""

    axes = 3
