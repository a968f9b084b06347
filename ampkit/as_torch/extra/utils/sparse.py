"""`torch.sparse`: the constructors of its old classes of tensors."""

from __future__ import annotations

from typing import Any

import ampkit

__all__ = ["DoubleTensor", "FloatTensor", "HalfTensor", "LongTensor"]


def _constructor(name: str, dtype: str) -> Any:
    def made(indices: Any, values: Any, size: Any = None) -> Any:
        return ampkit.sparse_coo_tensor(indices, values, size, dtype=dtype)

    made.__name__, made.__doc__ = name, f"A sparse tensor of {dtype}."
    return made


FloatTensor, DoubleTensor = _constructor("FloatTensor", "float32"), _constructor("DoubleTensor", "float64")
HalfTensor, LongTensor = _constructor("HalfTensor", "float16"), _constructor("LongTensor", "int64")
