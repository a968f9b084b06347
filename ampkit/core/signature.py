"""Signature: which parameters of an op are tensors, and the calls made from that, written out once as source.

Binding by `inspect` would cost more than the op: like a named tuple's, the functions are generated at definition.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError
from . import arguments, torch_compat
from .policy import _stack
from .tensor import Tensor

_ARRAY = {"Array", "Array | None"}
_INDEX = {"Index", "Index | None"}


class Signature:
    """The bound form of a reference's signature.

    entry(run) takes the reference's arguments and passes to `run`: the tensor inputs, the other parameters, of each
    input its array, its edge and its version, and the key: the rules of the region and all else that a plan depends on.
    call(f, inputs, params) calls f like the reference; call_kernel(f, inputs, params, dtype) adds `dtype=`, which
    faster kernels take. typed: whether the op takes an explicit dtype; it ends the key, and a reference, which
    never mentions a dtype, gets None. names: the tensor parameters; param_names: the others, in order; variadic: the
    name of the parameter that is a list of tensors, or None. given: all that a caller may pass, PyTorch's words too.
    Raises DTypeError at definition if no parameter is marked `Array`, `Arrays` or `Index`, or an `Arrays` is not alone.
    """

    def __init__(self, name: str, reference: Callable[..., Any]):
        self.name = name
        self.accepted = torch_compat.with_compat_args(inspect.signature(reference).parameters)
        parameters = {p.name: p for p in self.accepted if torch_compat.is_passed_on(p)}
        kind = {k: p.annotation if isinstance(p.annotation, str) else "" for k, p in parameters.items()}
        tensors = [k for k in parameters if kind[k] in _ARRAY | _INDEX]
        lists = [k for k in parameters if kind[k] == "Arrays"]
        _need_tensors(name, tensors, lists, parameters)
        self.variadic = lists[0] if lists else None
        self.names = () if self.variadic else tuple(tensors)
        self.param_names = tuple(k for k in parameters if k not in tensors and k != self.variadic)
        self._kinds = [kind[k] in _ARRAY for k in tensors]
        self._optional = [kind[k].endswith("None") for k in tensors]
        self.typed = "dtype" in self.param_names
        self._parameters = parameters
        self.call, self.call_kernel = self._call(parameters, ""), self._call(parameters, ", dtype=dtype")

    def kinds(self, count: int) -> list[bool]:
        """Per input, whether it takes part in the choice of dtype (`Array`) or not (`Index`)."""
        return [True] * count if self.variadic else self._kinds

    def may_miss(self, position: int) -> bool:
        """Whether the input at `position` may be None."""
        return self.variadic is None and self._optional[position]

    def name_of(self, position: int) -> str:
        """The name of the input at `position`; for one of a list, the list's."""
        return self.variadic or self.names[position]

    def entry(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The method that binds the reference's arguments and runs `run`: see the head of the class."""
        scope = torch_compat.namespace(self.accepted)
        scope |= {"_region": _stack.get, "_Tensor": Tensor, "_unlike": _unlike, "_several": _several, "_never": NEVER}
        scope |= {"_parse": dtypes.parse, "_run": run}
        params = _tuple(["None" if k == "dtype" else k for k in self.param_names])
        answer = "None if dtype is None else _parse(dtype), " if self.typed else ""
        lines = [*torch_compat.prologue(self.name, self.accepted, "_self"), *self._checks(scope)]
        if self.variadic:
            kernel = f"    return _run(*_several({self.variadic}, {params}, ({answer})))"
        else:
            # Every op of every step passes here, so the loop over the inputs is unrolled.
            count = range(len(self.names))
            kernel = "\n".join(
                [
                    *(_INPUT.format(i=i, name=name) for i, name in enumerate(self.names)),
                    "    _rules = _region()",
                    "    if _rules is not None:",
                    "        _rules = _rules.rules",
                    f"    _key = (_rules, {_row('_k{0}, _t{0}, _e{0} is not None', count)}{answer})",
                    f"    return _run({_tuple(self.names)}, {params}, [{_row('_a{}', count)}], "
                    f"({_row('_e{}', count)}), ({_row('_v{}', count)}), _key)",
                ]
            )
        kernel = "\n".join([*lines, kernel])
        return _compile(
            f"def {self.name}(_self, {torch_compat.parameter_list(self.accepted)}):\n{kernel}", self.name, scope
        )

    def _checks(self, scope: dict[str, Any]) -> list[str]:
        # The source that checks the parameters beside the tensors; what it names goes to `scope`.
        lines = []
        for name in self.param_names:
            wanted = arguments.of_parameter(self._parameters[name], {})
            if wanted is not None:
                scope |= {f"_kind_{name}": wanted, f"_types_{name}": wanted.types, "_check": arguments.check}
                given = f"{name} is not _default_{name} and " if f"_default_{name}" in scope else ""
                call = f"_check({self.name!r}, {name!r}, _kind_{name}, {name})"
                lines.append(f"    if {given}type({name}) not in _types_{name}: {call}")
        return lines

    def _call(self, parameters: Any, last: str) -> Callable[..., Any]:
        places = {k: f"a[{i}]" for i, k in enumerate(self.names)} | {
            k: f"p[{i}]" for i, k in enumerate(self.param_names)
        }
        if self.variadic:
            places[self.variadic] = "list(a)"
        if last and "dtype" in parameters:
            places["dtype"], last = "dtype", ""
        first = next((i for i, p in enumerate(self.accepted) if not torch_compat.is_passed_on(p)), len(self.accepted))
        keyword = {p.name for i, p in enumerate(self.accepted) if i > first or p.kind is p.KEYWORD_ONLY}
        row = ", ".join(f"{k}={places[k]}" if k in keyword else places[k] for k in parameters)
        return _compile(f"def call(f, a, p, dtype=None): return f({row}{last})", "call", {})


def _need_tensors(name: str, tensors: list[str], lists: list[str], parameters: Any) -> None:
    where = f"@op {name}"
    if not tensors and not lists:
        cure = "annotate its tensors: def f(input: Array, ...), under `from __future__ import annotations`"
        raise DTypeError(where, "a parameter marked Array, Arrays or Index", "none", cure)
    if len(lists) > 1 or (lists and tensors):
        cure = "pass all of its tensors in the list"
        raise DTypeError(where, "one `Arrays` and no other tensor", ", ".join([*lists, *tensors]), cure)
    if stars := [str(p).partition(":")[0] for p in parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]:
        raise DTypeError(where, "parameters with names", ", ".join(stars), "mark a list of tensors `Arrays`")


NEVER = (0,)  # the version of what cannot change

# Of one input: its array, edge and version, what a plan needs to know of its dtype (see plan.Entry), and its class.
_INPUT = """\
    if type({name}) is float:  # asking for the class of a number takes longer than the rest of this
        _a{i}, _k{i}, _e{i}, _t{i}, _v{i} = {name}, float, None, None, _never
    elif isinstance({name}, _Tensor):
        _a{i}, _e{i}, _v{i} = {name}.array, {name}.edge, {name}.version
        _k{i}, _t{i} = _a{i}.dtype if _a{i}.ndim else (_a{i}.dtype,), type(_a{i})
    else:
        _e{i} = _t{i} = None
        _v{i} = _never
        _a{i}, _k{i} = _unlike({name})"""


def _row(pattern: str, count: range) -> str:
    return "".join(pattern.format(i) + ", " for i in count)


def _unlike(item: Any) -> tuple[Any, Any]:
    # A Python number, a missing input, or a mistake. A NumPy scalar would bring NumPy's promotion along.
    if isinstance(item, np.generic):
        item = item.item()
    if type(item) is int and not -(2**63) <= item < 2**63:
        raise ArgumentError("operand", "a number within 64 bits", arguments.shown(item))
    return item, None if item is None else type(item)


def _several(inputs: Any, params: tuple[Any, ...], answer: tuple[Any, ...]) -> tuple[Any, ...]:
    # What `entry` passes on, for an op that takes a list of tensors.
    if not isinstance(inputs, (list, tuple)) and not hasattr(inputs, "__iter__"):
        raise DTypeError("op", "a list of Tensors", f"a {type(inputs).__name__}")
    inputs, region = tuple(inputs), _stack.get()
    arrays: list[Any] = []
    key: list[Any] = [None if region is None else region.rules]
    for item in inputs:
        if isinstance(item, Tensor):
            array = item.array
            key += (array.dtype if array.ndim else (array.dtype,), array.__class__, item.edge is not None)
        else:
            array, kind = _unlike(item)
            key += (kind, None, False)
        arrays.append(array)
    edges = tuple([i.edge if isinstance(i, Tensor) else None for i in inputs])
    versions = tuple([i.version if isinstance(i, Tensor) else NEVER for i in inputs])
    return inputs, params, arrays, edges, versions, (*key, *answer)


def _tuple(names: Iterable[str]) -> str:
    return "(" + "".join(f"{n}, " for n in names) + ")"


def _compile(source: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    scope = dict(names)
    exec(source, scope)
    return scope[name]
