"""Functions of `torch.nn.functional` that take an axis of their own where none is given, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from .... import ops

__all__ = ["log_softmax", "softmax", "softmin"]


def _implicit(name: str) -> Callable[..., Any]:
    function = getattr(ops, name)

    @wraps(function, updated=())
    def along(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        if dim is None:
            dim = int(getattr(input, "ndim", 0) not in (0, 1, 3))
            warnings.warn(f"{name} without dim takes {dim} here: say {name}(x, dim=...)", UserWarning, stacklevel=2)
        return function(input, dim, dtype=dtype)

    return along


softmax, log_softmax, softmin = map(_implicit, ("softmax", "log_softmax", "softmin"))
