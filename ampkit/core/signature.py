"""Signature: which parameters of an op are tensors, and the two calls made from that, written out once as source.

Binding by `inspect` would cost more than the op: like a named tuple's, the functions are generated at definition.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from . import dtypes
from .dtypes import DType
from .errors import DTypeError

_ARRAY = {"Array", "Array | None"}
_INDEX = {"Index", "Index | None"}


class Signature:
    """The bound form of a reference's signature.

    bind(*args, **kwargs) -> (tensor inputs, other parameters); call(f, inputs, params) calls f like the reference, and
    call_in(f, inputs, params, dtype) likewise with `dtype=`, as faster bodies are called.
    typed: whether the op takes an explicit dtype. names: the tensor parameters; param_names: the others, in order;
    variadic: the name of the parameter that is a list of tensors, or None.
    Raises DTypeError at definition if no parameter is marked `Array`, `Arrays` or `Index`.
    """

    def __init__(self, name: str, reference: Callable[..., Any]):
        parameters = inspect.signature(reference).parameters
        kind = {k: p.annotation if isinstance(p.annotation, str) else "" for k, p in parameters.items()}
        tensors = [k for k in parameters if kind[k] in _ARRAY | _INDEX]
        self.variadic = next((k for k in parameters if kind[k] == "Arrays"), None)
        if not tensors and self.variadic is None:
            cure = "annotate its tensors: def f(input: Array, ...), under `from __future__ import annotations`"
            raise DTypeError(f"@op {name}", "a parameter marked Array, Arrays or Index", "none", cure)
        self.names = () if self.variadic else tuple(tensors)
        self.param_names = tuple(k for k in parameters if k not in tensors and k != self.variadic)
        self._kinds = [kind[k] in _ARRAY for k in tensors]
        self._dtype_at = self.param_names.index("dtype") if "dtype" in self.param_names else None
        self.typed = self._dtype_at is not None
        self.bind = self._bind(name, parameters)
        self.call, self.call_in = self._call(parameters, ""), self._call(parameters, ", dtype=dtype")

    def kinds(self, count: int) -> list[bool]:
        """Per input, whether it takes part in the choice of dtype (`Array`) or not (`Index`)."""
        return [True] * count if self.variadic else self._kinds

    def name_of(self, position: int) -> str:
        """The name of the input at `position`; for one of a list, the list's."""
        return self.variadic or self.names[position]

    def dtype_of(self, params: tuple[Any, ...]) -> DType | None:
        """The caller's explicit `dtype=`, if the op takes one."""
        given = None if self._dtype_at is None else params[self._dtype_at]
        return None if given is None else dtypes.parse(given)

    def without_dtype(self, params: tuple[Any, ...]) -> tuple[Any, ...]:
        """`params` with `dtype` taken back: op.py has seen to it, references never do."""
        at = self._dtype_at
        return params if at is None else (*params[:at], None, *params[at + 1 :])

    def pick(self, primitive: Any, backend: str, inputs: Any, params: Any) -> Any:
        """The body of `primitive` for these arguments."""
        return self.call(partial(primitive.pick, backend), inputs, params)

    def _bind(self, name: str, parameters: Any) -> Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]:
        defaults = {f"_{k}": p.default for k, p in parameters.items() if p.default is not p.empty}
        inputs = f"tuple({self.variadic})" if self.variadic else _tuple(self.names)
        source = f"def {name}({_header(parameters)}): return {inputs}, {_tuple(self.param_names)}"
        return _compile(source, name, defaults)

    def _call(self, parameters: Any, last: str) -> Callable[..., Any]:
        places = {k: f"a[{i}]" for i, k in enumerate(self.names)} | {
            k: f"p[{i}]" for i, k in enumerate(self.param_names)
        }
        if self.variadic:
            places[self.variadic] = "list(a)"
        if last and "dtype" in parameters:
            places["dtype"], last = "dtype", ""
        keyword = {k for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
        row = ", ".join(f"{k}={places[k]}" if k in keyword else places[k] for k in parameters)
        return _compile(f"def call(f, a, p, dtype=None): return f({row}{last})", "call", {})


def _header(parameters: Any) -> str:
    parts, star = [], False
    for name, parameter in parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        parts.append(name if parameter.default is parameter.empty else f"{name}=_{name}")
    return ", ".join(parts)


def _tuple(names: tuple[str, ...]) -> str:
    return "(" + "".join(f"{n}, " for n in names) + ")"


def _compile(source: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    scope = dict(names)
    exec(source, scope)
    return scope[name]  # type: ignore[no-any-return]
