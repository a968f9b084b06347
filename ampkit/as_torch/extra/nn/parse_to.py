"""`torch._C._nn`: how modules of others read the arguments of `to`."""

from __future__ import annotations

from typing import Any

from ....base.public_dtypes import DTYPES
from ....nn.to_device import destination

__all__ = ["_parse_to"]


def _parse_to(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool, Any]:
    """(device, dtype, non_blocking, memory_format) of the arguments of `to`; None for what is not given."""
    device, dtype = destination("to", args, kwargs)
    blocking = kwargs.get("non_blocking", next((each for each in args if isinstance(each, bool)), False))
    return device, dtype and DTYPES[dtype], blocking, kwargs.get("memory_format")
