"""NumPy functions of Tensors, and operators with a NumPy scalar on the left: `np.mean(x)`, `np.float32(2) * x`.

Functions receive arrays and return arrays, off the tape. A NumPy scalar acts as a Python number; an array raises.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.base.errors import DTypeError
from ampkit.core.arguments import without_numpy
from ampkit.core.tensor import Tensor

_OPERATORS: dict[Any, Callable[[Any, Any], Any]] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul, np.true_divide: operator.truediv,
    np.floor_divide: operator.floordiv, np.remainder: operator.mod, np.power: operator.pow, np.matmul: operator.matmul,
    np.bitwise_and: operator.and_, np.bitwise_or: operator.or_, np.bitwise_xor: operator.xor,
    np.left_shift: operator.lshift, np.right_shift: operator.rshift,
    np.equal: operator.eq, np.not_equal: operator.ne, np.less: operator.lt, np.less_equal: operator.le,
    np.greater: operator.gt, np.greater_equal: operator.ge,
}  # fmt: skip


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Tensor.__array_ufunc__: called by NumPy for `np.exp(x)` and for `a * x` with an array or NumPy scalar `a`.

    Raises DTypeError for an array operand, StateError for a Tensor that requires grad.
    """
    first = inputs[0]
    # Comparisons pass 0-d arrays.
    if ufunc in _OPERATORS and isinstance(first, (np.generic, np.ndarray)) and not first.ndim:
        return _OPERATORS[ufunc](without_numpy(first), inputs[1])
    if any(isinstance(i, np.ndarray) for i in inputs):
        raise DTypeError(ufunc.__name__, "Tensors and numbers", "ndarray", "wrap arrays with ampkit.tensor(...)")
    return getattr(ufunc, method)(*_values(inputs), **_values(kwargs))


def array_function(self: Tensor, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
    """Tensor.__array_function__: called by NumPy for other functions. StateError for a Tensor that requires grad."""
    return function(*_values(args), **_values(kwargs))


def _values(item: Any) -> Any:
    if isinstance(item, Tensor):
        return item.numpy()
    if isinstance(item, dict):
        return {name: _values(value) for name, value in item.items()}
    return type(item)([_values(i) for i in item]) if type(item) in (tuple, list) else item
