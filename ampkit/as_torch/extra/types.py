"""`torch.types`: names for annotations."""

from collections.abc import Sequence
from typing import Any

from ...backends import Device
from ...core.tensor import Tensor

__all__ = ["Device", "Number", "Storage", "Tensor", "_bool", "_device", "_dtype", "_float", "_int", "_size"]

Number = int | float | bool
Storage = _dtype = Any
_int, _float, _bool, _device = int, float, bool, Device
_size = Sequence[int]
