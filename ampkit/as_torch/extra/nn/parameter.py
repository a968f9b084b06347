"""`torch.nn.parameter`: parameters and buffers without a shape."""

from __future__ import annotations

from typing import Any

from ....nn.uninitialized import Uninitialized as UninitializedTensorMixin
from ....nn.uninitialized import UninitializedBuffer, UninitializedParameter

__all__ = ["UninitializedBuffer", "UninitializedParameter", "UninitializedTensorMixin", "is_lazy"]


def is_lazy(param: Any) -> bool:
    """Whether it has no shape yet."""
    return isinstance(param, UninitializedTensorMixin)
