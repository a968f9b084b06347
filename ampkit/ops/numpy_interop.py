"""NumPy's functions on Tensors, and NumPy's numbers and arrays before a Tensor: `np.mean(x)`, `np.float32(2) * x`.

A function gets the values and answers with an array, off the tape; a number is a number; an array is no tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.base.errors import DTypeError
from ampkit.core.tensor import Tensor

__all__: list[str] = []

_OPERATORS: dict[Any, Callable[[Any, Any], Any]] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul, np.true_divide: operator.truediv,
    np.floor_divide: operator.floordiv, np.remainder: operator.mod, np.power: operator.pow, np.matmul: operator.matmul,
    np.bitwise_and: operator.and_, np.bitwise_or: operator.or_, np.bitwise_xor: operator.xor,
    np.equal: operator.eq, np.not_equal: operator.ne, np.less: operator.lt, np.less_equal: operator.le,
    np.greater: operator.gt, np.greater_equal: operator.ge,
}  # fmt: skip


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """What NumPy calls for `np.exp(x)`, and for `a * x` with an array or a NumPy scalar `a`.

    Raises DTypeError for an array beside a Tensor, StateError for a Tensor that requires grad.
    """
    first = inputs[0]
    if (
        ufunc in _OPERATORS and isinstance(first, (np.generic, np.ndarray)) and not first.ndim
    ):  # NumPy compares 0-d ones
        return _OPERATORS[ufunc](first.item(), inputs[1])
    if any(isinstance(i, np.ndarray) for i in inputs):
        raise DTypeError(ufunc.__name__, "Tensors and numbers", "ndarray", "wrap arrays with ampkit.tensor(...)")
    return getattr(ufunc, method)(*_values(inputs), **_values(kwargs))


def array_function(self: Tensor, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
    """What NumPy calls for its other functions. Raises StateError for a Tensor that requires grad."""
    return function(*_values(args), **_values(kwargs))


def _values(item: Any) -> Any:
    if isinstance(item, Tensor):
        return item.numpy()
    if isinstance(item, dict):
        return {name: _values(value) for name, value in item.items()}
    return type(item)([_values(i) for i in item]) if type(item) in (tuple, list) else item
