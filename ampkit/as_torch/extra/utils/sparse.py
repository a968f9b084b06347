"""`torch.sparse`: the constructors of its old classes of tensors, and a check that is always on."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any

import ampkit

_DTYPES = {
    "BFloat16": "bfloat16", "Byte": "uint8", "Char": "int8", "Double": "float64", "Float": "float32", "Half": "float16",
    "Int": "int32", "Long": "int64", "Short": "int16",
}  # fmt: skip
__all__ = ["check_sparse_tensor_invariants", *(f"{_name}Tensor" for _name in _DTYPES)]


def _constructor(name: str, dtype: str) -> Any:
    def made(indices: Any, values: Any, size: Any = None) -> Any:
        return ampkit.sparse_coo_tensor(indices, values, size, dtype=dtype)

    made.__name__, made.__doc__ = name, f"A sparse tensor of {dtype}."
    return made


for _name, _dtype in _DTYPES.items():
    globals()[f"{_name}Tensor"] = _constructor(f"{_name}Tensor", _dtype)


class check_sparse_tensor_invariants(ContextDecorator):
    """Indices are always checked, when a sparse tensor is made: this changes nothing."""

    def __init__(self, enable: bool = True):
        self.asked = enable

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, *error: object) -> None:
        """Nothing."""

    @staticmethod
    def is_enabled() -> bool:
        """True."""
        return True

    @staticmethod
    def enable() -> None:
        """Nothing: it is on."""

    @staticmethod
    def disable() -> None:
        """Nothing: it stays on."""
