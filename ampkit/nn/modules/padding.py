"""Padding by what is inside; see `ops.pad`."""

from __future__ import annotations

from typing import Any

from ampkit import ops
from ampkit.core.tensor import Tensor

from .fold import _Pad


class _EdgePad(_Pad):
    mode = ""

    def __init__(self, padding: Any):
        super().__init__(padding)

    def forward(self, input: Tensor) -> Tensor:
        return ops.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return str(self.padding)


class ReflectionPad1d(_EdgePad):
    """The elements inside mirrored at the ends of the last axis: [..., L] -> [..., L']. padding: (left, right)."""

    axes, mode = 1, "reflect"


class ReflectionPad2d(ReflectionPad1d):
    """ReflectionPad1d of the last two axes. padding: a width, or (left, right, top, bottom)."""

    axes = 2


class ReflectionPad3d(ReflectionPad1d):
    """ReflectionPad1d of the last three axes. padding: a width, or (left, right, top, bottom, front, back)."""

    axes = 3


class ReplicationPad1d(_EdgePad):
    """The outer elements of the last axis repeated: [..., L] -> [..., L']. padding: one width, or (left, right)."""

    axes, mode = 1, "replicate"


class ReplicationPad2d(ReplicationPad1d):
    """ReplicationPad1d of the last two axes. padding: a width, or (left, right, top, bottom)."""

    axes = 2


class ReplicationPad3d(ReplicationPad1d):
    """ReplicationPad1d of the last three axes. padding: a width, or (left, right, top, bottom, front, back)."""

    axes = 3


class CircularPad1d(_EdgePad):
    """The last axis wrapped round at its ends: [..., L] -> [..., L']. padding: one width, or (left, right)."""

    axes, mode = 1, "circular"


class CircularPad2d(CircularPad1d):
    """CircularPad1d of the last two axes. padding: a width, or (left, right, top, bottom)."""

    axes = 2


class CircularPad3d(CircularPad1d):
    """CircularPad1d of the last three axes. padding: a width, or (left, right, top, bottom, front, back)."""

    axes = 3
