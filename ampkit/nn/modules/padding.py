"""Padding of the last one, two or three axes; see `ops.pad`.

padding: one width for all sides, or (left, right, top, bottom, front, back) as far as there are axes.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ampkit import ops
from ampkit.base.errors import ArgumentError
from ampkit.core.tensor import Tensor

from ..op_module import OpModule

__all__ = [
    "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d",
    "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d",
    "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip


class _Pad(OpModule, op=ops.pad):
    axes: ClassVar[int] = 0
    mode: ClassVar[str] = "constant"

    padding: Any

    def __post_init__(self) -> None:
        count, padding = 2 * self.axes, self.padding
        widths = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * count
        if len(widths) != count or not all(isinstance(n, int) for n in widths):
            raise ArgumentError(type(self).__name__, f"padding as an integer or {count} of them", repr(padding))
        self.padding = widths

    def forward(self, input: Tensor) -> Tensor:
        return ops.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return str(self.padding)


class ZeroPad1d(_Pad):
    """Zeros around the last axis: input [..., L] -> [..., L']. padding: one width, or (left, right)."""

    axes = 1


class ZeroPad2d(_Pad):
    """Zeros around the last two axes: input [..., H, W] -> [..., H', W']."""

    axes = 2


class ZeroPad3d(_Pad):
    """Zeros around the last three axes: input [..., D, H, W] -> [..., D', H', W']."""

    axes = 3


class ConstantPad1d(_Pad, op=ops.pad):
    """`value` around the last axis: input [..., L] -> [..., L']. padding: one width, or (left, right)."""

    axes = 1

    value: float

    def forward(self, input: Tensor) -> Tensor:
        return ops.pad(input, self.padding, value=self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad2d(ConstantPad1d):
    """`value` around the last two axes: input [..., H, W] -> [..., H', W']."""

    axes = 2


class ConstantPad3d(ConstantPad1d):
    """`value` around the last three axes: input [..., D, H, W] -> [..., D', H', W']."""

    axes = 3


class ReflectionPad1d(_Pad):
    """The last axis mirrored at its ends, which are not repeated: [..., L] -> [..., L']."""

    axes, mode = 1, "reflect"


class ReflectionPad2d(ReflectionPad1d):
    """ReflectionPad1d of the last two axes."""

    axes = 2


class ReflectionPad3d(ReflectionPad1d):
    """ReflectionPad1d of the last three axes."""

    axes = 3


class ReplicationPad1d(_Pad):
    """The outer elements of the last axis repeated: [..., L] -> [..., L']."""

    axes, mode = 1, "replicate"


class ReplicationPad2d(ReplicationPad1d):
    """ReplicationPad1d of the last two axes."""

    axes = 2


class ReplicationPad3d(ReplicationPad1d):
    """ReplicationPad1d of the last three axes."""

    axes = 3


class CircularPad1d(_Pad):
    """The last axis wrapped around at its ends: [..., L] -> [..., L']."""

    axes, mode = 1, "circular"


class CircularPad2d(CircularPad1d):
    """CircularPad1d of the last two axes."""

    axes = 2


class CircularPad3d(CircularPad1d):
    """CircularPad1d of the last three axes."""

    axes = 3
