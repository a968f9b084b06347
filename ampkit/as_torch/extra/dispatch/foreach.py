"""`torch._foreach_*`: a function of each tensor of a list, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .... import ops
from ....core.tensor import Tensor
from ....linalg import vector_norm

_OF_ONE = [
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
]  # fmt: skip
_OF_MORE = [
    "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "div", "lerp", "maximum", "minimum", "mul", "pow", "sub",
]  # fmt: skip


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Sequence[Tensor], *others: Any, **options: Any) -> list[Any]:
        rows = [other if isinstance(other, (list, tuple)) else [other] * len(self) for other in others]
        return [function(*each, **options) for each in zip(self, *rows, strict=True)]

    return call


def _each_in_place(method: Callable[..., Any]) -> Callable[..., None]:
    run = _each(method)

    def call(self: Sequence[Tensor], *others: Any, **options: Any) -> None:
        run(self, *others, **options)

    return call


def _extreme(name: str) -> Callable[..., Any]:
    bound = {"maximum": "clamp_min", "minimum": "clamp_max"}[name]
    return lambda x, other: getattr(ops, name if isinstance(other, Tensor) else bound)(x, other)


def _with_value(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, a, b, value=1: function(x, a, b, value=value)


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *others, **options: x.copy_(function(x, *others, **options))


def _norm(x: Tensor, ord: Any = 2, dtype: Any = None) -> Tensor:
    return vector_norm(x, ord, dtype=dtype)


_functions = {name: getattr(ops, name) for name in (*_OF_ONE, *_OF_MORE) if hasattr(ops, name)}
_functions |= {name: _with_value(getattr(ops, name)) for name in ("addcdiv", "addcmul")}
_functions |= {name: _extreme(name) for name in ("maximum", "minimum")}
_found: dict[str, Any] = {}
for _name, _function in _functions.items():
    _found[f"_foreach_{_name}"] = _each(_function)
    _method = getattr(Tensor, f"{_name}_", None)
    if _method is None or _name in ("addcdiv", "addcmul", "maximum", "minimum"):
        _method = _in_place(_function)
    _found[f"_foreach_{_name}_"] = _each_in_place(_method)
_found["_foreach_norm"] = _each(_norm)
_found["_foreach_copy_"] = _each_in_place(Tensor.copy_)
_found["_foreach_zero_"] = _each_in_place(Tensor.zero_)

globals().update(_found)
__all__ = list(_found)
