"""Convolutions and transposed convolutions of sequences, images and volumes."""

from __future__ import annotations

from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError
from ampkit.core.tensor import Tensor

from ..factory import check_sizes, is_size, new_parameter, per_axis
from ..module import Module
from .linear import init_uniform

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

_CONVOLUTIONS: Any = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}
_TRANSPOSED: Any = {1: ops.conv_transpose1d, 2: ops.conv_transpose2d, 3: ops.conv_transpose3d}


class _Conv(Module):
    axes = 0
    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        where = type(self).__name__
        check_sizes(where, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            got = f"in_channels={in_channels}, out_channels={out_channels}, groups={groups}"
            raise ArgumentError(where, "channels that groups divides", got)
        modes = ("zeros",) if self.transposed else ("zeros", "reflect", "replicate", "circular")
        if padding_mode not in modes:
            raise ArgumentError(where, f"padding_mode {', '.join(map(repr, modes))}", repr(padding_mode))
        self.in_channels, self.out_channels = in_channels, out_channels
        self.groups, self.padding_mode = groups, padding_mode
        self.kernel_size = per_axis(where, "kernel_size", kernel_size, self.axes)
        self.stride = per_axis(where, "stride", stride, self.axes)
        self.dilation = per_axis(where, "dilation", dilation, self.axes)
        self.padding = _padding(where, padding, self.stride)
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = new_parameter((first, second // groups, *self.kernel_size), device, dtype)
        self.register_parameter("bias", new_parameter((out_channels,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weight and bias again."""
        init_uniform(self)

    def forward(self, input: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = ops.pad(input, self._pad_widths(), self.padding_mode), 0
        convolve = _CONVOLUTIONS[self.axes]
        return convolve(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _pad_widths(self) -> list[int]:
        # The padding in the order of `ops.pad`: the last axis first.
        if self.padding == "same":
            spare = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return [n for total in reversed(spare) for n in (total // 2, total - total // 2)]
        pads = (0,) * self.axes if self.padding == "valid" else self.padding
        return [n for pad in reversed(pads) for n in (pad, pad)]

    def extra_repr(self) -> str:
        plain = {"padding": (0,) * self.axes, "dilation": (1,) * self.axes, "groups": 1}
        rest = "".join(f", {k}={getattr(self, k)}" for k, v in plain.items() if getattr(self, k) != v)
        head = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}{rest}"
        head = head if self.bias is not None else f"{head}, bias=False"
        return head if self.padding_mode == "zeros" else f"{head}, padding_mode={self.padding_mode}"


class Conv1d(_Conv):
    """Cross-correlation over one axis: input [N, in_channels, L] -> [N, out_channels, L'].

    weight [out_channels, in_channels/groups, kernel_size], bias [out_channels]; see Conv2d.
    """

    axes = 1


class Conv2d(_Conv):
    """Cross-correlation over two axes: input [N, in_channels, H, W] -> [N, out_channels, H', W'].

    weight [out_channels, in_channels/groups, *kernel_size], bias [out_channels]; both start uniform in
    +-1/sqrt(in_channels/groups * kernel area). padding: a width on each side, "same" or "valid"; padding_mode: "zeros",
    "reflect", "replicate" or "circular" (see `ops.pad`).
    Raises ArgumentError for sizes that do not fit together.
    """

    axes = 2


class Conv3d(_Conv):
    """Cross-correlation over three axes: input [N, in_channels, D, H, W] -> [N, out_channels, D', H', W'].

    weight [out_channels, in_channels/groups, *kernel_size], bias [out_channels]; see Conv2d.
    """

    axes = 3


class _ConvTranspose(_Conv):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ):
        where = type(self).__name__
        if isinstance(padding, str):
            raise ArgumentError(where, f"padding as {self.axes} integers >= 0", repr(padding))
        options = (stride, padding, dilation, groups, bias, padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, kernel_size, *options)
        self.output_padding = _padding(where, output_padding, self.stride)

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        """output_size, the spatial axes such as (H', W') or the whole shape, overrides output_padding."""
        extra = self.output_padding if output_size is None else self._output_padding_for(input, output_size)
        transpose = _TRANSPOSED[self.axes]
        return transpose(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _output_padding_for(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        wanted = tuple(output_size)[-self.axes :] if isinstance(output_size, (tuple, list)) else (output_size,)
        sides = zip(input.shape[-self.axes :], self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        least = tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in sides)
        most = tuple(n + s - 1 for n, s in zip(least, self.stride, strict=True))
        near = [is_size(w) and n <= w <= m for n, w, m in zip(least, wanted, most, strict=False)]
        if len(wanted) != self.axes or not all(near):
            raise ArgumentError(type(self).__name__, f"an output_size from {least} to {most}", f"{output_size}")
        return tuple(w - n for w, n in zip(wanted, least, strict=True))

    def extra_repr(self) -> str:
        more = f", output_padding={self.output_padding}" if any(self.output_padding) else ""
        return super().extra_repr() + more


class ConvTranspose1d(_ConvTranspose):
    """The transpose of Conv1d: input [N, in_channels, L] -> [N, out_channels, L']; see ConvTranspose2d."""

    axes = 1


class ConvTranspose2d(_ConvTranspose):
    """The transpose of Conv2d: input [N, in_channels, H, W] -> [N, out_channels, H', W'].

    weight [in_channels, out_channels/groups, *kernel_size], bias [out_channels]; output_padding: rows and columns
    added at the end, fewer than the stride. Raises ArgumentError for sizes that do not fit together.
    """

    axes = 2


class ConvTranspose3d(_ConvTranspose):
    """The transpose of Conv3d: input [N, in_channels, D, H, W] -> [N, out_channels, ...]; see ConvTranspose2d."""

    axes = 3


def _padding(where: str, padding: Any, stride: tuple[int, ...]) -> Any:
    if isinstance(padding, str) and padding == "same" and any(s != 1 for s in stride):
        raise ArgumentError(where, "stride 1 with padding='same'", f"stride {stride}")
    if isinstance(padding, str) and padding in ("same", "valid"):
        return padding
    found = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * len(stride)
    if len(found) != len(stride) or not all(isinstance(p, int) and p >= 0 for p in found):
        raise ArgumentError(where, f"padding as {len(stride)} integers >= 0, 'same' or 'valid'", repr(padding))
    return found
